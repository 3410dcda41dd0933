// DFlash 2's selector: scores the candidates of each depth beside the token chosen at the depth before.
#pragma once

#include <stdint.h>

#include "base/dtype_id.h"
#include "ops/top_tokens.h"

namespace lb {

inline constexpr int kMaxSelectorRank = 1024;

// From row 0 on, with previous = *root before it:
//   score[i] = logprobs[r,i] + sum_j predecessors[previous, j] hidden[r,j] successors[ids[r,i], j]
// Then the candidates of the row are put in the order of their scores, the largest first, equal ones as they were;
// logprobs = log_softmax(score) over the k candidates; previous = the first of them.
struct SelectCandidates {
  const float* hidden;       // [rows, rank] projected hidden states
  const void* predecessors;  // [vocab, rank] of `type`: blocks on the CPU, planes (quant/planes.h) on devices
  const void* successors;    // [vocab, rank] of `type`, as above
  DType type;
  const int32_t* root;       // [1] token before row 0
  int32_t* ids;              // [rows, k] in: candidates, as from TopTokens; out: in order of score
  float* logprobs;           // [rows, k] in: theirs, up to a constant per row; out: of the scores
  int rows, vocab, rank, k;  // rows < kMaxTree, rank <= kMaxSelectorRank, k <= kMaxTopTokens
};

}  // namespace lb
