// Exchanges between the megakernels of all ranks: shares of sums, logits, and whether another token follows. All ranks
// run the same phases on grids of one size, so a phase has the same tag on each of them.
#pragma once

#include "gpu/megakernel/mailbox.h"
#include "peers.h"

namespace lb::gpu {

inline constexpr bool kTakesRanks = !kHasScalarRegisters;  // they would spill
LB_DEVICE bool has_ranks(const SampleTask& p) { return kTakesRanks && p.flags_at >= 0; }

inline constexpr int kPollsPerLook = 64;  // at the clock

// Calls is_there() until it is true or the time is over. Real time limits the wait: in the simulator, a peer's clock is
// not this device's.
template <class IsThere>
LB_DEVICE void wait_for_peer(const PhaseWait& wait, IsThere&& is_there) {
  uint64_t start = 0;
  LB_UNROLL_BY(1)
  for (int polls = 1; !is_there(); ++polls) {
    if (polls % kPollsPerLook != 0) continue;
    if (wait.has_timed_out()) return;
    const uint64_t now = wall_ns();
    if (start == 0) start = now;
    if (now - start > uint64_t(mega_state().timeout_ns)) return wait.time_out();
  }
}

LB_DEVICE Mailbox await_word(const Mailbox* from, uint32_t tag, const PhaseWait& wait) {
  Mailbox word = 0;
  wait_for_peer(wait, [&] {
    word = load_relaxed_system(from);
    return uint32_t(word >> 32) == tag;
  });
  return word;
}

// The words of a product's shares: [ranks, n_out] of each rank. Addresses are loaded before the sums are there.
struct ShareWords {
  const MegaRanks* ranks = nullptr;
  Mailbox *own = nullptr, *next = nullptr;  // of this rank and of the next one
  int rank = 0, n = 0, at = 0, n_out = 0;

  LB_DEVICE ShareWords() = default;
  LB_DEVICE explicit ShareWords(const ProductTask& p) : ranks(mega_state().ranks), at(p.peers_at), n_out(p.op.n_out) {
    rank = ranks->rank;
    n = ranks->n;
    own = ranks->words[rank] + at;
    next = words_of(1);
  }
  // Sends a row's share to all ranks, this one included.
  LB_DEVICE void send(int row, float share, uint32_t tag) const {
    const int to = shares_at(0, n, rank, n_out) + row;
    const Mailbox word = mailbox_of(share, tag);
    store_relaxed_system(next + to, word);
    store_relaxed_system(own + to, word);
    LB_UNROLL_BY(1)
    for (int i = 2; i < n; ++i) store_relaxed_system(words_of(i) + to, word);
  }
  // The sums of some rows' shares, in the order of the ranks. Rows and two ranks are loaded together.
  template <int kRows>
  LB_DEVICE void await_sums(const int (&rows)[kRows], uint32_t tag, const PhaseWait& wait, float (&sums)[kRows]) const {
    LB_UNROLL_BY(1)
    for (int first = 0; first < n; first += 2) {
      const bool has_second = first + 1 < n;
      const Mailbox* from = own + shares_at(0, n, first, n_out);
      Mailbox words[kRows][2];
      wait_for_peer(wait, [&] {
        uint32_t differs = 0;
        LB_UNROLL
        for (int k = 0; k < kRows; ++k) {
          words[k][0] = load_relaxed_system(from + rows[k]);
          words[k][1] = has_second ? load_relaxed_system(from + n_out + rows[k]) : mailbox_of(0u, tag);
        }
        LB_UNROLL
        for (int k = 0; k < kRows; ++k)
          differs |= (uint32_t(words[k][0] >> 32) ^ tag) | (uint32_t(words[k][1] >> 32) ^ tag);
        return differs == 0;
      });
      LB_UNROLL
      for (int k = 0; k < kRows; ++k) {
        sums[k] = first == 0 ? value_in(words[k][0]) : sums[k] + value_in(words[k][0]);
        if (has_second) sums[k] += value_in(words[k][1]);
      }
    }
  }

 private:
  LB_DEVICE Mailbox* words_of(int ranks_later) const { return ranks->words[(rank + ranks_later) % n] + at; }
};

// Stores a logit for all peers. Call system_fence() before the block arrives.
LB_DEVICE void send_logit(int at, float logit) {
  const MegaRanks& ranks = *mega_state().ranks;
  if (ranks.staged_logits != nullptr) {
    ranks.staged_logits[at] = logit;
    return;
  }
  LB_UNROLL_BY(1)
  for (int i = 1; i < ranks.n; ++i) ranks.logits[(ranks.rank + i) % ranks.n][at] = logit;
}

// Waits until all ranks have stored all logits. A block arrives after its own; block 0 tells the peers once all blocks
// have. Then copies the logits [begin, end) from host memory, if they are there.
LB_DEVICE void await_logits(const SampleTask& p, int begin, int end, const PhaseWait& wait) {
  const MegaRanks& ranks = *mega_state().ranks;
  const auto flag = [&](int at_rank, int of) {
    return reinterpret_cast<uint32_t*>(ranks.words[at_rank] + p.flags_at + of);
  };
  wait();
  const int peer = thread_id();
  if (peer < ranks.n && peer != ranks.rank) {
    if (block_id() == 0) store_release_system(flag(peer, ranks.rank), wait.tag);
    wait_for_peer(wait, [&] { return load_acquire_system(flag(ranks.rank, peer)) == wait.tag; });
  }
  block_barrier();
  if (ranks.staged_logits == nullptr) return;
  constexpr int kInFlight = 4;
  float* const to = ranks.logits[ranks.rank];
  LB_UNROLL_BY(1)
  for (int first = begin + thread_id(); first < end; first += kInFlight * n_threads()) {
    float logits[kInFlight];
    LB_UNROLL
    for (int k = 0; k < kInFlight; ++k) logits[k] = ranks.staged_logits[min(first + k * n_threads(), end - 1)];
    LB_UNROLL
    for (int k = 0; k < kInFlight; ++k)
      if (first + k * n_threads() < end) to[first + k * n_threads()] = logits[k];
  }
  block_barrier();
}

// Returns the decision of the last rank, which sends its own. Called by one thread.
LB_DEVICE bool agreed(const SampleTask& p, bool own, const PhaseWait& wait) {
  const MegaRanks& ranks = *mega_state().ranks;
  const int leader = ranks.n - 1, at = p.flags_at + ranks.n;
  if (ranks.rank != leader) return uint32_t(await_word(ranks.words[ranks.rank] + at, wait.tag, wait)) != 0;
  LB_UNROLL_BY(1)
  for (int peer = 0; peer < leader; ++peer)
    store_relaxed_system(ranks.words[peer] + at, mailbox_of(uint32_t(own), wait.tag));
  return own;
}

}  // namespace lb::gpu
