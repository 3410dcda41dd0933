// The body of NextToken, for its kernel and for the megakernel, run by one warp: move_on() advances the next step's
// numbers, tell_host() publishes the result in the host's ring.
#pragma once

#include "ops/next_token.h"

namespace lb::gpu {

// The step's numbers before they advance. Lane i has position i.
struct StepNumbers {
  uint32_t n_written;
  int32_t position, n_past, key_buffer;

  LB_DEVICE void read(const NextToken& p) {
    n_written = *p.n_written;
    if (lane() < p.n_positions) position = p.positions[lane()];
    if (p.n_past) {
      n_past = *p.n_past;
      key_buffer = *p.key_buffer;
    }
  }
};

LB_DEVICE void move_on(const NextToken& p, const StepNumbers& before, int32_t token) {
  warp_barrier();  // all lanes have read before any lane writes
  if (lane() < p.n_positions) p.positions[lane()] = before.position + 1;
  if (lane() != 0) return;
  *p.token = token;
  *p.n_written = before.n_written + 1;
  if (p.n_past) {
    *p.n_past = before.n_past + 1;
    *p.key_buffer = before.key_buffer ^ 1;
    *p.n_accepted = 1;
    p.accepted[0] = 0;
  }
}

// Publishes a result as token n.
LB_DEVICE void publish(const Sampled* sampled, const TokenRing& ring, uint32_t n) {
  const uint32_t* from = reinterpret_cast<const uint32_t*>(sampled);
  uint32_t* to = reinterpret_cast<uint32_t*>(ring.slots + (n & uint32_t(ring.capacity - 1)));
  for (int i = lane(); i < int(sizeof(Sampled) / 4); i += 32) to[i] = from[i];
  warp_barrier();  // orders the copies of all lanes before lane 0's release
  if (lane() == 0) store_release_system(ring.written, n + 1);
}
LB_DEVICE void tell_host(const NextToken& p, uint32_t n) { publish(p.sampled, p.ring, n); }

}  // namespace lb::gpu
