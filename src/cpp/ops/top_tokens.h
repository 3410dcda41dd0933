// The likeliest tokens of rows of logits, for drafts and for greedy verification.
#pragma once

#include <stdint.h>

namespace lb {

inline constexpr int kMaxTopTokens = 8;

// The k largest logits of each row, the larger first, then the lower id, and the natural logarithms of their
// probabilities: l[r,i] - log(sum_j e^l[r,j]), with l = scale * logit, and then l = softcap * tanh(l / softcap) if
// softcap > 0. A NaN is below every other logit. Log probabilities are NaN in a row with a NaN, or with +infinity and
// no softcap.
struct TopTokens {
  const float* logits;  // [rows, vocab]
  int32_t* ids;         // [rows, k]
  float* logprobs;      // [rows, k]
  int rows, vocab, k;   // 1 <= k <= min(vocab, kMaxTopTokens)
  float scale;          // > 0, so scaling keeps the order of the logits
  float softcap;        // 0: none
};

}  // namespace lb
