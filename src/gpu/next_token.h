// The body of NextToken, of one warp: copies the result into the host's ring, publishes it, and moves the numbers of
// the next step on.
#pragma once

#include "ops/next_token.h"

namespace lb::gpu {

LB_DEVICE void next_token(const NextToken& p) {
  const uint32_t n = *p.n_written;
  const uint32_t* from = reinterpret_cast<const uint32_t*>(p.sampled);
  uint32_t* to = reinterpret_cast<uint32_t*>(p.ring.slots + (n & uint32_t(p.ring.capacity - 1)));
  for (int i = lane(); i < int(sizeof(Sampled) / 4); i += 32) to[i] = from[i];
  warp_barrier();  // orders the copies before the release of lane 0
  for (int i = lane(); i < p.n_positions; i += 32) p.positions[i] += 1;
  if (lane() == 0) {
    *p.token = p.sampled->token;
    if (p.n_past) {
      *p.n_past += 1;
      *p.key_buffer ^= 1;
      *p.n_accepted = 1;
      p.accepted[0] = 0;
    }
    *p.n_written = n + 1;
    store_release_system(p.ring.written, n + 1);
  }
}

}  // namespace lb::gpu
