// Greedy choice, for requests that need only the likeliest token. Each block sends the key of its likeliest token
// through mailboxes, and one warp of one block reads all keys.
#pragma once

#include "gpu/megakernel/mailbox.h"
#include "gpu/sampling/sample_token.h"

namespace lb::gpu {

LB_DEVICE bool asks_for_likeliest(const SampleOptions& o) { return sampling::is_greedy(o.temperature) && o.n_top < 0; }
// Whether the likeliest token is simply the one with the largest logit.
LB_DEVICE bool is_plain_choice(const SampleOptions& o) { return asks_for_likeliest(o) && !adjusts_by_token(o); }

// Sends the key of the block's likeliest token to the choosing warp. Called by one thread.
LB_DEVICE void send_best(const SampleTask& p, uint64_t key, uint32_t tag) {
  store_relaxed(mega_state().mailboxes + (p.best_mailbox.at + 2 * block_id()), mailbox_of(uint32_t(key >> 32), tag),
                mailbox_of(uint32_t(key), tag));
}

// Returns the largest key of all blocks, with kAtOnce keys in flight. Called by a warp.
LB_DEVICE uint64_t best_of_all(const SampleTask& p, const PhaseWait& wait) {
  constexpr int kAtOnce = 5;
  const uint32_t tag = wait.tag_of(p.best_mailbox);
  const Mailbox* from = PhaseWait::mailboxes_of(p.best_mailbox);
  uint64_t best = 0;
  LB_UNROLL_BY(1)
  for (int first = lane(); first - lane() < n_blocks(); first += 32 * kAtOnce) {
    Mailbox boxes[kAtOnce][2];
    poll_until_valid(wait, [&] {
      uint32_t differs = 0;
      LB_UNROLL
      for (int k = 0; k < kAtOnce; ++k) {
        boxes[k][0] = boxes[k][1] = Mailbox(tag) << 32;
        if (first + 32 * k < n_blocks()) load_relaxed(from + 2 * (first + 32 * k), boxes[k][0], boxes[k][1]);
      }
      LB_UNROLL
      for (int k = 0; k < kAtOnce; ++k) differs |= (boxes[k][0] >> 32 ^ tag) | (boxes[k][1] >> 32 ^ tag);
      return differs;
    });
    LB_UNROLL
    for (int k = 0; k < kAtOnce; ++k) best = larger(best, boxes[k][0] << 32 | uint32_t(boxes[k][1]));
  }
  return warp_largest(best);
}

}  // namespace lb::gpu
