// The tree of a draft from the likeliest tokens of each depth, without the host (ops/draft_rules.h). Best first: the
// first n rows are the best tree of n rows, so a verify may take fewer rows than the tree has.
#pragma once

#include <stdint.h>

#include "ops/draft.h"
#include "ops/top_tokens.h"

namespace lb {

// Writes the fields of each sequence's Draft and the positions of the append that verifies it:
// positions[s, axis, i] = n_past[s] + depths[s, i]. A sequence with fewer candidates than max_rows gets fewer rows;
// elements after its last row are not written.
struct GrowTree {
  const int32_t* ids;       // [sequences, depth, k] of each depth below the root, the likeliest first
  const float* logprobs;    // [sequences, depth, k] natural logarithms
  const int32_t* root;      // [sequences] the newest tokens
  const int32_t* n_past;    // [sequences] committed tokens, without the root
  int32_t* n_rows;          // [sequences] nodes of the tree, the root included
  int32_t* tokens;          // [sequences, max_rows]
  int32_t* parents;         // [sequences, max_rows]
  int32_t* depths;          // [sequences, max_rows]
  float* scores;            // [sequences, max_rows]
  uint64_t* ancestors;      // [sequences, max_rows]
  int32_t* positions;       // [sequences, 3, rows]
  int sequences, depth, k;  // depth >= 1, 1 <= k <= kMaxTopTokens
  int max_rows;             // 1 .. kMaxTree: rows to grow
  int rows;                 // 1 .. max_rows: rows to verify
};

}  // namespace lb
