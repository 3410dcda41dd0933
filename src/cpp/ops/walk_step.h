// One step of the sampler's walk down a verified tree, on the device, without the host.
#pragma once

#include <stdint.h>

#include "ops/draft.h"
#include "ops/next_token.h"

namespace lb {

// How far the sampler has come in a tree.
struct TreeCursor {
  int32_t row;  // of the node whose logits decide next; -1: the walk is over
};

// Behind a Sample whose row is cursor->row: publishes the token with its row, and moves to that row, the node's child
// that holds the token. Where the draft has none, or the sampler found a problem, the walk is over: its later steps do
// nothing.
struct WalkStep {
  Sampled* sampled;    // [1] in: the token; out: its row
  const Draft* draft;  // [1]
  TreeCursor* cursor;  // [1]
  TokenRing ring;
  uint32_t* n_written;  // [1] as in NextToken
  int32_t* token;       // [1] the next step's input
};

}  // namespace lb
