// Gated DeltaNet, the recurrent mixer of Qwen3.5. A decode step, a verification tree and a prefill chunk are the same
// op, and rejecting rows copies nothing. The rows of an append stay pending (k, delta and the log decay of each); the
// next append first folds the accepted path of pending rows into the state S. Nothing else advances S.
// All arithmetic is fp32. Maths: docs/numerics.md, "Gated DeltaNet as one masked chunk".
//
// A chunk is up to 64 rows. An append is one chunk, a tree or a chain. A GPU also takes longer chains, in chunks of 64
// rows (the last may be shorter). A long chain leaves the same state as one call per chunk that accepts all rows of the
// previous chunk: earlier chunks are folded, the last chunk is pending, and every chunk flips the pending buffers once.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "ops/append.h"
#include "ops/rms_norm.h"

namespace lb {

// y[r,c] = silu(sum_j w[c,j] * input(r, n_taps-1-j)[c]). input(r, d) is the d-th ancestor of row r; beyond the first
// row it continues into the committed history. First appends the `accepted` rows of `pending` to `history`.
struct CausalConv {
  const float* x;  // [rows, channels] raw inputs of this append
  const float* w;  // [channels, n_taps]; tap n_taps-1 is the row itself
  float* history;  // [n_taps-1, channels] last committed raw inputs, oldest first; zeros at the start
  float* pending;  // [64, channels] in: raw inputs of the previous append's last chunk; out: of this append's
  float* y;        // [rows, channels]
  Accepted accepted;
  Tree tree;
  int rows, channels, n_taps;
};

// In place: q <- q / sqrt(sum q^2 + eps) / sqrt(dk), k <- k / sqrt(sum k^2 + eps) per head;
// g <- a_neg * softplus(g + dt_bias) (the log decay, <= 0), beta <- sigmoid(beta).
struct DeltaPrepare {
  float* q;              // [rows, n_k_heads, dk]
  float* k;              // [rows, n_k_heads, dk]
  float* g;              // [rows, n_v_heads]: in: the "a" projection; contiguous
  float* beta;           // [rows, n_v_heads]: in: the "b" projection; contiguous
  const float* a_neg;    // [n_v_heads], -exp(A_log)
  const float* dt_bias;  // [n_v_heads]
  int rows, n_k_heads, n_v_heads, dk;
  long row_stride;  // values between rows of q, and of k
  float eps;
};

// Everything between the projections and the recurrence, fused: the convolution, whose first channels are then prepared
// as q and k, and the gates.
struct DeltaInputs {
  CausalConv conv;
  DeltaPrepare prepare;  // q = conv.y, k = q + n_k_heads * dk, row_stride = conv.channels
  bool by_row = false;   // A row has the same bits alone and among up to 64 rows. On the CPU it always has.
};

enum class HeadOrder {
  kGrouped,  // value head j reads key head j / (VH / KH)      safetensors
  kTiled,    // value head j reads key head j % KH             GGUF (its converter reorders the value heads)
};

// Per value head, with cs_i = g_i + cs_parent(i) and E_ij = exp(cs_i - cs_j) for j an ancestor of i, or i itself:
//   delta_i = beta_i (v_i - e^{cs_i} S^T k_i - sum_{strict ancestors j} E_ij (k_i.k_j) delta_j)
//   o_i     = e^{cs_i} S^T q_i + sum_{ancestors-or-self j} E_ij (q_i.k_j) delta_j
// First folds the accepted path p, whose last row is l: S <- e^{cs_l} S + sum_{j in p} e^{cs_l - cs_j} k_j delta_j^T.
struct GatedDelta {   // rows == 0: only folds
  const float* q;     // [rows, KH, dk], prepared
  const float* k;     // [rows, KH, dk], prepared
  const float* v;     // [rows, VH, dv]
  const float* g;     // [rows, VH] log decay
  const float* beta;  // [rows, VH]
  float* o;           // [rows, VH, dv] contiguous
  float* S;           // [VH, dk, dv] committed state, zeros at the start
  // Pending rows. Keys and cs are double-buffered: while one thread block writes this append's keys, blocks of other
  // slices of the head may still fold the previous append's. A delta belongs to one slice, so one buffer is enough.
  float* k_pending[2];    // [64, KH, dk] keys
  float* cs_pending[2];   // [64, VH] cs; row by row: g
  float* delta;           // [64, VH, dv] in: the previous append's; out: this append's
  const int32_t* buffer;  // [1] index (*buffer + flip) % 2 has the previous append's rows
  int flip;
  Accepted accepted;
  Tree tree;
  int rows, n_k_heads, n_v_heads, dk, dv;
  long row_stride;  // values between rows of q, of k and of v
  HeadOrder order;
  // Row by row: each row has the bits of a step after its parent, and the accepted rows, which were computed row by
  // row too, fold one after another, as steps fold them. At most 32 rows. The CPU always computes row by row.
  bool by_row = false;
};

// Everything between a recurrent layer's projections. The norm may have more rows than inputs and delta, which then
// take its last rows.
struct DeltaNet {
  DeltaInputs inputs;
  GatedDelta delta;
  GatedRmsNorm norm;
};

size_t delta_thread_scratch(int dk, int dv);

}  // namespace lb
