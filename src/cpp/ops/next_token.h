// From a sampled token to the next step without the host: the token goes to where the next forward pass reads it and
// into a ring that the host reads, and the numbers of the append move on.
#pragma once

#include <stdint.h>

#include "ops/sample.h"

namespace lb {

// In pinned memory of the host, which may read slots[i % capacity] once *written (acquire) is above i, and must before
// i + capacity is written.
struct TokenRing {
  Sampled* slots;     // [capacity]
  uint32_t* written;  // [1]: tokens so far, modulo 2^32
  int capacity;       // a power of two
};

// *token = the sampled one, positions[i] += 1; after an append of one row, which is accepted by this: *n_past += 1,
// *key_buffer ^= 1, *n_accepted = 1, accepted[0] = 0.
struct NextToken {
  const Sampled* sampled;  // [1]
  TokenRing ring;
  uint32_t* n_written;  // [1] of the device: *ring.written, without a read across the bus
  int32_t* token;       // [1]: the next step's input
  int32_t* n_past;      // [1]; null after a token chosen without an append, and the three below are not used
  int32_t* key_buffer;  // [1]: 0 or 1
  int32_t* n_accepted;  // [1]
  int32_t* accepted;    // [1 or more]
  int32_t* positions;   // [n_positions]
  int n_positions;      // at most 32
};

}  // namespace lb
