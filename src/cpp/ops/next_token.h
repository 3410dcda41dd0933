// Ends a decode step on the device, without the host: hands the sampled token to the next forward pass, publishes it to
// the host through a ring buffer, and advances positions and the numbers of the append.
#pragma once

#include <stdint.h>

#include "ops/sample.h"

namespace lb {

// Single-producer ring in pinned host memory. The host may read slots[i % capacity] once *written (load-acquire) is
// above i, and must have read it before token i + capacity is written.
struct TokenRing {
  Sampled* slots;     // [capacity]
  uint32_t* written;  // [1] tokens so far, modulo 2^32
  int capacity;       // a power of two
};

// *token = sampled->token; positions[i] += 1. If the step appended one row, accepts it: *n_past += 1, *key_buffer ^= 1,
// *n_accepted = 1, accepted[0] = 0.
struct NextToken {
  const Sampled* sampled;  // [1]
  TokenRing ring;
  uint32_t* n_written;  // [1] the device's copy of *ring.written, which saves a read across the bus
  int32_t* token;       // [1] the next step's input
  int32_t* n_past;      // [1] null if the step appended nothing; then the next three pointers are not used
  int32_t* key_buffer;  // [1] 0 or 1, GatedDelta::buffer
  int32_t* n_accepted;  // [1]
  int32_t* accepted;    // [1 or more]
  int32_t* positions;   // [n_positions]
  int n_positions;      // at most 32: one per lane
};

}  // namespace lb
