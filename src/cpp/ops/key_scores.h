// The attention weights that the last rows of an append give to each slot. Speculative prefill ranks a prompt by them.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "ops/attention.h"

namespace lb {

// scores[t, s] = max(scores[t, s], max_h softmax_s(scale * q[t, h] . k[s]))     s <= n_past + first_row + t
// Query head h reads the stored keys of KV head h / (n_heads / n_kv_heads), as in Attention of a chain; rotated keys
// take rotated queries. Later slots keep their score. Runs once per layer, after the append's AttentionPrepare, so a
// score is the maximum over heads and layers.
struct KeyScores {
  const float* q;         // [rows, n_heads, head_dim] the append's rows first_row, first_row + 1, ...
  KvLayer cache;          // V is not read
  float* scores;          // [rows, stride]
  float* parts;           // [kKeyScoreParts, rows, n_heads, 2] scratch: maximum and sum of each part of the context
  const int32_t* n_past;  // [1]
  int first_row, rows, n_heads, stride;
  float scale;
};

inline constexpr int kKeyScoreParts = 256;   // parts of the context, each of whole pages
inline constexpr int kMaxKeyScoreRows = 16;  // rows of one op

size_t key_scores_thread_scratch(int rows, int n_heads, int n_kv_heads, int head_dim);  // on the CPU

}  // namespace lb
