// Attention over a paged KV cache: append, attend, and compact the rows of an accepted tree path.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "ops/append.h"
#include "ops/rope.h"
#include "quant/kv_type.h"

namespace lb {

// One layer's cache. A page holds 64 tokens of every KV head: [page][n_kv_heads], each kv_head_bytes() of
// quant/kv_type.h. Token slot s of the sequence lives in page page_table[s / 64], row s % 64.
//
// A layer with key_tail > 0 stores its values as parts of its keys: a row of k has key_dim values, and the first
// head_dim of them are also the value. Such a layer has K = V: its values are normed rows n, its keys are Rope(n * w)
// for a weight w. The last values of the row, the tail, are the values of the key that Rope changes; n has the others.
// Queries match: their first head_dim values are q * w, zero where the tail has the key's values; the tail of a query
// has its rotated values.
struct KvLayer {
  void* k;
  void* v;                    // null with key_tail
  const int32_t* page_table;  // [ceil(capacity / 64)]
  KvType k_type, v_type;      // equal with key_tail
  int n_kv_heads, head_dim;
  int key_tail = 0;
};
LB_FN constexpr int key_dim_of(const KvLayer& cache) { return cache.head_dim + cache.key_tail; }
// The pages of values: rows of key_dim_of() values.
LB_FN constexpr void* value_pages(const KvLayer& cache) { return cache.key_tail > 0 ? cache.k : cache.v; }

static_assert(kPageTokens == kPageSlots);

// slot n_past + r <- k[r], v[r], converted to the cache's KV types. Rotated types store rotated values.
struct KvAppend {
  const float* k;  // [rows, n_kv_heads, key_dim]
  const float* v;  // [rows, n_kv_heads, head_dim]; null with key_tail
  KvLayer cache;
  const int32_t* n_past;  // [1]
  int rows;
};

// Everything between the projections and the attention, fused: RmsNorm of q and k per head (if the model has norm
// weights) or biases of q, k and v (if it has those), Rope of q and k, KvAppend of k and v. If K has a rotated type, q
// is rotated too. Without k: queries alone, of a layer that reads another layer's cache.
// With cache.key_tail: norms are given, q_norm includes the keys' weight where the tail has no values, and pairs are
// halves of a head. The first n_tail_pairs pairs of a head are in the tail: n_tail_pairs values, their partners, zeros.
struct AttentionPrepare {
  const float* u;       // [rows, n_heads, head_dim] projected queries, strides below
  float* q;             // [rows, n_heads, key_dim] contiguous; u itself when there are no norms
  float* k;             // [rows, n_kv_heads, head_dim] in: projected; out: undefined; null with v: nothing is appended
  float* v;             // [rows, n_kv_heads, key_dim] in: projected, or undefined with key_tail; out: undefined
  const float* q_bias;  // [n_heads, head_dim]; null: no biases. With biases there are no norms.
  const float* k_bias;  // [n_kv_heads, head_dim]
  const float* v_bias;  // [n_kv_heads, head_dim]
  const float* q_norm;  // [head_dim]; null: no norms
  const float* k_norm;  // [head_dim]; null when q_norm is, or without k
  const float* cos;     // [rows, n_pairs]
  const float* sin;     // [rows, n_pairs]
  KvLayer cache;
  const int32_t* n_past;  // [1]
  int rows, n_heads, n_pairs;
  int n_tail_pairs = 0;  // with key_tail; the angles of later pairs are 0
  long u_row_stride, u_head_stride;
  float eps;
  RopePairs pairs;
  const float* v_norm = nullptr;  // [head_dim]; null: v is not normalised; only with q_norm
  const float* q_cos = nullptr;   // [rows, n_pairs] of the queries; null: cos and sin
  const float* q_sin = nullptr;   // [rows, n_pairs]
};

// slot n_past + j <- slot n_past + path[j] for every accepted row. In place: path[j] >= j and j ascends, so every slot
// is read before it is written.
struct KvMove {
  KvLayer cache;
  Accepted accepted;
  const int32_t* n_past;  // [1] before these rows were accepted
};

// o[r,h,:] = sigmoid(gate[r,h,:]) * sum_s softmax_s(scale * q[r,h].k[s]) v[s]
// A sink is a logit of each head that takes a share of the softmax and has no value: exp(sinks[h]) is added to the sum
// of the weights.
// k and v are the values that the cache stores, for this append's rows too. A rotated K takes rotated queries; the sum
// over a rotated V is rotated back before the gate.
// Query head h reads KV head h / (n_heads / n_kv_heads). The rows of this append are already in the cache. Row r sees
// slots [0, n_past) and, of this append, the rows up to r (chain: causal mask) or the rows in ancestors[r] (tree).
// With last_seen, a row of a chain sees the rows up to last_seen[r] instead: rows of an image see the whole image.
// ancestors[r] may include rows after r: a draft block attends in both directions. first_slot and window hide slots.
// Pages before the first visible slot are not read. Other hidden slots are read and masked, so they must hold finite
// values.
// The context is split at fixed pages and the splits are merged in order, so the result does not depend on the number
// of threads.
struct Attention {
  const float* q;     // [rows, n_heads, key_dim]
  const float* gate;  // [rows, n_heads, head_dim], strides below; null: no gate
  float* o;           // [rows, n_heads, head_dim]
  KvLayer cache;
  Tree tree;
  const int32_t* n_past;  // [1]
  int rows, n_heads;
  long gate_row_stride, gate_head_stride;
  float scale;
  int first_slot = 0;  // slots before both it and n_past are hidden
  // > 0: row r of a chain sees slots after n_past + r - window. Of the slots before n_past, a row of a draft block sees
  // the same, and a row of a tree with parents, at depth d, those after n_past + d - window; such a tree is no deeper
  // than the window.
  int window = 0;
  const float* sinks = nullptr;  // [n_heads]; null: none
  // [n_query_blocks, n_kv_heads, list_size] the key blocks that each query block of a chain attends to (SelectBlocks);
  // other slots are hidden. null: none are.
  const int32_t* blocks = nullptr;
  int n_query_blocks = 0, list_size = 0;
  // [rows] of a chain, ascending, last_seen[r] >= r; null: r. Not with blocks.
  const int32_t* last_seen = nullptr;
  // Each row of a tree has the bits of a step after its parent, whose slots would follow its ancestors' in order. On
  // the CPU it always has.
  bool by_row = false;
};

size_t attention_shared_scratch(int max_rows, int n_heads, int head_dim, int max_context);
size_t attention_thread_scratch(int key_dim, int n_heads, int n_kv_heads);

}  // namespace lb
