// What the megakernels of all ranks exchange: shares of sums, logits, and whether another token follows. All ranks run
// the same phases on grids of one size, so a phase has the same tag on each of them.
#pragma once

#include "gpu/megakernel/mailbox.h"
#include "peers.h"

namespace lb::gpu {

inline constexpr bool kTakesRanks = !kHasScalarRegisters;  // they would spill
inline constexpr int kPollsPerLook = 64;                   // at the clock

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

// Sends the share of a row to all ranks, the own one included. at: the first word of the ranks' shares.
LB_DEVICE void send_share(int at, int n_out, int row, float share, uint32_t tag) {
  const MegaRanks& ranks = *mega_state().ranks;
  const int to = at + shares_at(0, ranks.n, ranks.rank, n_out) + row;
  LB_UNROLL_BY(1)
  for (int i = 1; i <= ranks.n; ++i)
    store_relaxed_system(ranks.words[(ranks.rank + i) % ranks.n] + to, mailbox_of(share, tag));
}

// The sum of a row's shares, in the order of the ranks.
LB_DEVICE float await_shares(int at, int n_out, int row, uint32_t tag, const PhaseWait& wait) {
  const MegaRanks& ranks = *mega_state().ranks;
  const Mailbox* from = ranks.words[ranks.rank] + at + row;
  float sum = 0;
  LB_UNROLL_BY(1)
  for (int rank = 0; rank < ranks.n; ++rank) {
    const float share = value_in(await_word(from + shares_at(0, ranks.n, rank, n_out), tag, wait));
    sum = rank == 0 ? share : sum + share;
  }
  return sum;
}

// Stores a logit in the memory of all peers. Call system_fence() before the block arrives.
LB_DEVICE void send_logit(int at, float logit) {
  const MegaRanks& ranks = *mega_state().ranks;
  LB_UNROLL_BY(1)
  for (int i = 1; i < ranks.n; ++i) ranks.logits[(ranks.rank + i) % ranks.n][at] = logit;
}

// Waits until all ranks have stored all logits. A block arrives after its own; block 0 tells the peers once all blocks
// have.
LB_DEVICE void await_logits(const SampleTask& p, const PhaseWait& wait) {
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
