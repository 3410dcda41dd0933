// Attention over a paged KV cache: append, read, and the compaction that follows an accepted tree path.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/dtype_id.h"
#include "ops/append.h"
#include "ops/rope.h"

namespace lb {

// One layer's cache. A page holds 64 tokens of every KV head: [page][n_kv_heads][64][head_dim].
// Token slot s of the sequence lives in page page_table[s / 64], row s % 64.
struct KvLayer {
  void* k;
  void* v;
  const int32_t* page_table;  // [ceil(capacity / 64)]
  DType k_type, v_type;       // F32, F16 or BF16
  int n_kv_heads, head_dim;
};

// slot n_past + r <- k[r], v[r], rounded to the cache types (nearest even).
struct KvAppend {
  const float* k;  // [rows, n_kv_heads, head_dim]
  const float* v;  // [rows, n_kv_heads, head_dim]
  KvLayer cache;
  const int32_t* n_past;  // [1]
  int rows;
};

// What lies between the projections and the attention: q and k normalised per head (RmsNorm) where there are weights
// for it, and rotated (Rope); k and v appended (KvAppend).
struct AttentionPrepare {
  const float* u;       // [rows, n_heads, head_dim] projected queries, strides below
  float* q;             // [rows, n_heads, head_dim] contiguous; u itself where there are no norms
  float* k;             // [rows, n_kv_heads, head_dim] in: projected; out: of no use
  const float* v;       // [rows, n_kv_heads, head_dim]
  const float* q_norm;  // [head_dim], or null as k_norm then is
  const float* k_norm;  // [head_dim]
  const float* cos;     // [rows, n_pairs]
  const float* sin;     // [rows, n_pairs]
  KvLayer cache;
  const int32_t* n_past;  // [1]
  int rows, n_heads, n_pairs;
  long u_row_stride, u_head_stride;
  float eps;
  RopePairs pairs;
};

// slot n_past + j <- slot n_past + path[j] for every accepted row, ascending j; path[j] >= j, so it is safe in place.
struct KvMove {
  KvLayer cache;
  Accepted accepted;
  const int32_t* n_past;  // [1] before these rows were accepted
};

// o[r,h,:] = sigmoid(gate[r,h,:]) * sum_s softmax_s(scale * q[r,h].k[s]) v[s]; query head h reads KV head h / (n_heads
// / n_kv_heads). Row r sees slots [0, n_past) and, of the rows of this append (already in the cache), those up to r
// (chain) or its ancestors (tree). Split over the context in fixed runs of pages, merged in order: the result does not
// depend on the number of threads.
struct Attention {
  const float* q;     // [rows, n_heads, head_dim]
  const float* gate;  // [rows, n_heads, head_dim] at the strides below, or null
  float* o;           // [rows, n_heads, head_dim]
  KvLayer cache;
  Tree tree;
  const int32_t* n_past;  // [1]
  int rows, n_heads;
  long gate_row_stride, gate_head_stride;
  float scale;
};

size_t attention_shared_scratch(int max_rows, int n_heads, int head_dim, int max_context);
size_t attention_thread_scratch(int head_dim, int n_heads, int n_kv_heads);

}  // namespace lb
