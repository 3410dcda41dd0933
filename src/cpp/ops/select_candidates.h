// DFlash 2's selector: scores the candidates of each depth given the token chosen at the previous depth.
#pragma once

#include <stdint.h>

#include "base/dtype_id.h"
#include "ops/top_tokens.h"

namespace lb {

inline constexpr int kMaxSelectorRank = 1024;

// For each row r in order, starting with previous = *root:
//   score[i] = logprobs[r,i] + sum_j predecessors[previous, j] hidden[r,j] successors[ids[r,i], j]
// Then sorts the row's candidates by descending score (a stable sort); logprobs = log_softmax(score) over the k
// candidates; previous = the first candidate.
struct SelectCandidates {
  const float* hidden;       // [rows, rank] projected hidden states
  const void* predecessors;  // [vocab, rank] of `type`: blocks on the CPU, planes (quant/planes.h) on devices
  const void* successors;    // [vocab, rank] of `type`, as above
  DType type;
  const int32_t* root;       // [1] token before row 0
  int32_t* ids;              // [rows, k] in: candidates, as from TopTokens; out: the same, by descending score
  float* logprobs;           // [rows, k] in: log probabilities, up to a constant per row; out: as above
  int rows, vocab, rank, k;  // rows < kMaxTree, rank <= kMaxSelectorRank, k <= kMaxTopTokens
};

}  // namespace lb
