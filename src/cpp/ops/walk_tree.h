// The sampler's walk down a verified tree, on the device, without the host: chooses the token after a row, publishes
// it, goes on to the row's child that holds the token, and so on.
#pragma once

#include <stdint.h>

#include "ops/append.h"
#include "ops/next_token.h"
#include "ops/sample.h"

namespace lb {

// Accepts the walked path, as NextToken accepts a row: *n_past += rows of the path, *key_buffer ^= 1, accepted[0..
// *n_accepted) is the path. Leaves what a draft below the last token reads: that token, and the positions from it on.
struct AcceptPath {
  int32_t* n_before;    // [1] out: *n_past before the path
  int32_t* n_past;      // [1] null: the path is not accepted; then the others are not used
  int32_t* key_buffer;  // [1] 0 or 1, GatedDelta::buffer
  int32_t* n_accepted;  // [1]
  int32_t* accepted;    // [kMaxTree]
  int32_t* root;        // [1]
  int32_t* positions;   // [3, n_positions]
  int n_positions;
};

// The walk begins at a row, and ends where the tree does not hold the token, or the sampler finds a problem. A
// published result says in which row the tree holds its token; -1: in none, the walk is over. A path that is accepted
// begins at row 0.
struct WalkTree {
  Sample choice;           // logits: [rows, vocab]
  const int32_t* tokens;   // [rows] as in Draft
  const int32_t* parents;  // [rows]
  int rows, first;         // first: the row whose logits decide first
  // A benchmark: the walk goes to the first child of a row, whatever is chosen, for so many rows, and ends there. Below
  // 0: the tokens chosen decide.
  int replay_length = -1;
  TokenRing ring;
  uint32_t* n_written;  // [1] as in NextToken
  int32_t* token;       // [1] the next step's input: the last token
  AcceptPath accept;
};

// Parameters of the kernel.
struct WalkOnGrid {
  SampleOnGrid sample;
  WalkTree op;  // but for its choice, which is in `sample`
};

}  // namespace lb
