// The sampler walks down a verified tree, on the device, without the host: it samples the token after a row, publishes
// it, moves to the child row that holds the token, and repeats.
#pragma once

#include <stdint.h>

#include "ops/append.h"
#include "ops/next_token.h"
#include "ops/sample.h"

namespace lb {

// Accepts the walked path, as NextToken accepts a row: *n_past += rows of the path, *key_buffer ^= 1, accepted[0..
// *n_accepted) is the path. Writes the inputs of the next draft: the last token as the root, its positions, and the
// newest committed slot.
struct AcceptPath {
  int32_t* n_before;    // [1] out: *n_past before the path
  int32_t* n_past;      // [1] null: the path is not accepted and the other pointers are not used
  int32_t* key_buffer;  // [1] 0 or 1, GatedDelta::buffer
  int32_t* n_accepted;  // [1]
  int32_t* accepted;    // [kMaxTree]
  int32_t* root;        // [1]
  int32_t* positions;   // [3, n_positions]
  int32_t* last_slot;   // [1] out: *n_past - 1
  int n_positions;
};

// The walk starts at row `first`. It ends when no child row holds the sampled token, or the sampler finds a problem.
// Each published result names the row that holds its token; -1: none, the walk is over. An accepted path starts at
// row 0.
struct WalkTree {
  Sample choice;           // logits: [rows, vocab]
  const int32_t* tokens;   // [rows] as in Draft
  const int32_t* parents;  // [rows]
  int rows, first;         // first: the row whose logits are sampled first
  // For benchmarks: if >= 0, the walk takes each row's first child, whatever token is sampled, and ends after this many
  // rows. < 0: the sampled tokens decide.
  int replay_length = -1;
  TokenRing ring;
  uint32_t* n_written;  // [1] as in NextToken
  int32_t* token;       // [1] the next step's input: the last token
  AcceptPath accept;
};

// Parameters of the kernel.
struct WalkOnGrid {
  SampleOnGrid sample;
  WalkTree op;  // op.choice is unused: `sample` holds it
};

}  // namespace lb
