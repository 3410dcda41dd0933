// Shared parts of the exchange kernels: the tag, the slots, waits with a time-out, the end of an exchange.
#pragma once

#include "dialect.h"

#include "gpu/ranks/shape.h"
#include "gpu/vectors.h"
#include "peers.h"

namespace lb::gpu {

inline constexpr int kPollsPerCheck = 64;  // of a wait, between two looks at the clock

// One exchange as a thread sees it.
struct Exchange {
  const RankMailboxes& ranks;
  uint32_t tag;
  bool waits;  // false after a failure: the values of peers are arbitrary

  // Call after wait_for_previous().
  LB_DEVICE explicit Exchange(const RankMailboxes& all)
      : ranks(all), tag(all.counters->sequence + 1), waits(all.counters->failed == 0) {}

  // Slots for values from `sender`, in the memory of `receiver`.
  LB_DEVICE long slot(int sender) const { return long(tag & 1) * ranks.n + sender; }
  LB_DEVICE uint64_t* words(int receiver, int sender) const {
    return ranks.words[receiver] + slot(sender) * kMailboxValues;
  }
  LB_DEVICE float* rows(int receiver, int sender) const {
    return ranks.rows[receiver] + slot(sender) * ranks.max_values;
  }
  LB_DEVICE uint32_t* flag(int receiver, int sender) const {
    return ranks.flags[receiver] + slot(sender) * kMaxExchangeBlocks + block_id();
  }

  LB_DEVICE uint64_t word_of(float value) const { return uint64_t(tag) << 32 | __builtin_bit_cast(uint32_t, value); }

  // Calls is_there() until it is true or the time is over.
  template <class IsThere>
  LB_DEVICE void wait(int sender, IsThere&& is_there) {
    uint64_t start = 0;
    for (int polls = 1; waits && !is_there(); ++polls) {
      if (polls % kPollsPerCheck != 0) continue;
      const uint64_t now = wall_ns();
      if (start == 0) start = now;
      if (now - start > ranks.timeout_ns) give_up(sender);
    }
  }
  LB_DEVICE void give_up(int sender) {
    waits = false;
    ranks.counters->failed = uint32_t(sender) + 1;
    store_release_system(ranks.report, uint32_t(sender) + 1);
  }

  // Two values of a peer.
  LB_DEVICE f32x2 receive(int sender, long at) {
    const uint64_t* from = words(ranks.rank, sender) + at;
    uint64_t first = 0, second = 0;
    wait(sender, [&] {
      load_relaxed_system(from, first, second);
      return uint32_t(first >> 32) == tag && uint32_t(second >> 32) == tag;
    });
    return {{__builtin_bit_cast(float, uint32_t(first)), __builtin_bit_cast(float, uint32_t(second))}};
  }

  // Call after the block has stored its rows for all peers: waits for the rows of the peers' blocks of this index.
  // is_second: the second time within an exchange, which a peer may have reached before this block sees its first flag.
  LB_DEVICE void swap_rows(bool is_second = false) {
    block_barrier();
    const int peer = thread_id();
    if (peer < ranks.n && peer != ranks.rank) {
      store_release_system(flag(peer, ranks.rank), 2 * tag + is_second);
      wait(peer, [&] {
        const uint32_t seen = load_acquire_system(flag(ranks.rank, peer));
        return seen == 2 * tag + 1 || (seen == 2 * tag && !is_second);
      });
    }
    block_barrier();
  }

  // The block's last call.
  LB_DEVICE void finish() const {
    block_barrier();
    if (thread_id() != 0) return;
    if (atomic_add_ordered(&ranks.counters->arrived, 1) + 1 != uint32_t(n_blocks())) return;
    ranks.counters->arrived = 0;
    ranks.counters->sequence = tag;
  }
};

// Part i of n of the values [0, count): multiples of 4 but for the last.
struct Span {
  long first, end;
  LB_DEVICE Span(long count, int i, int n) {
    const long each = ((count + n - 1) / n + 3) / 4 * 4;
    first = each * i < count ? each * i : count;
    end = first + each < count ? first + each : count;
  }
};

// The part that a block exchanges, of `count` values, or of a span.
struct BlockSpan : Span {
  LB_DEVICE explicit BlockSpan(long count) : Span(count, block_id(), n_blocks()) {}
  LB_DEVICE explicit BlockSpan(const Span& of) : BlockSpan(of.end - of.first) { first += of.first, end += of.first; }
};

}  // namespace lb::gpu
