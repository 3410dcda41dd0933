// Gated DeltaNet (the recurrent mixer of Qwen3.5), written so that a step, a verification tree and a prefill
// chunk are the same op and nothing is copied to take a step back:
//   the state S is only ever advanced by rows that were accepted ("folded"), at the start of the next append;
//   the rows of an append leave behind k, delta and the log decay, from which any accepted path can be folded.
// All arithmetic fp32. Maths: docs/numerics.md, "Gated DeltaNet as one masked chunk".
//
// An append is a tree or chain of up to 64 rows, one run; on a GPU also a chain of any number, in runs of 64 rows but
// for the last. The state is then what it would be after one call for each run, each accepting all of the run before:
// the last run's rows are pending, where the runs before have flipped the buffers to, and the ones before are folded.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "ops/append.h"
#include "ops/rms_norm.h"

namespace lb {

// y[r,c] = silu(sum_j w[c,j] * input(r, n_taps-1-j)[c]) where input(r, d) is the d-th ancestor of row r, running
// into the committed history beyond the first row. First folds `accepted` rows of `pending` into `history`.
struct CausalConv {
  const float* x;  // [rows, channels] raw inputs of this append
  const float* w;  // [channels, n_taps]; tap n_taps-1 is the row itself
  float* history;  // [n_taps-1, channels] last committed raw inputs, oldest first; zeros at the start
  float* pending;  // [64, channels] raw inputs of the previous append's last run; overwritten with this one's
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
  long row_stride;  // values from row to row of q and of k
  float eps;
};

// What lies between the projections and the recurrence: the convolution, then its first channels prepared as q and k.
struct DeltaInputs {
  CausalConv conv;
  DeltaPrepare prepare;  // q = conv.y, k behind it, row_stride = conv.channels
};

enum class HeadOrder {
  kGrouped,  // value head j reads key head j / (VH / KH)      safetensors
  kTiled,    // value head j reads key head j % KH             GGUF (its converter reorders the value heads)
};

// With cs_i = g_i + cs_parent(i), E_ij = exp(cs_i - cs_j) for j an ancestor of i or i itself, per value head:
//   delta_i = beta_i (v_i - e^{cs_i} S^T k_i - sum_{strict ancestors j} E_ij (k_i.k_j) delta_j)
//   o_i     = e^{cs_i} S^T q_i + sum_{ancestors-or-self j} E_ij (q_i.k_j) delta_j
// First folds the accepted path p (last row l): S <- e^{cs_l} S + sum_{j in p} e^{cs_l - cs_j} k_j delta_j^T.
struct GatedDelta {   // rows == 0: only folds
  const float* q;     // [rows, KH, dk], prepared
  const float* k;     // [rows, KH, dk], prepared
  const float* v;     // [rows, VH, dv]
  const float* g;     // [rows, VH] log decay
  const float* beta;  // [rows, VH]
  float* o;           // [rows, VH, dv] contiguous
  float* S;           // [VH, dk, dv] committed state, zeros at the start
  // Of the previous append in one, of this one in the other of two buffers: what is shared within a head is read until
  // all have folded.
  float* k_pending[2];    // [64, KH, dk] keys
  float* cs_pending[2];   // [64, VH] sums of g
  float* delta;           // [64, VH, dv] in: of the previous append, out: of this one
  const int32_t* buffer;  // [1] (*buffer + flip) % 2 holds those of the previous append
  int flip;
  Accepted accepted;
  Tree tree;
  int rows, n_k_heads, n_v_heads, dk, dv;
  long row_stride;  // values from row to row of q, k and v
  HeadOrder order;
};

// What lies between a recurrent layer's projections; the last rows of the norm are those of the others.
struct DeltaNet {
  DeltaInputs inputs;
  GatedDelta delta;
  GatedRmsNorm norm;
};

size_t delta_thread_scratch(int dk, int dv);

}  // namespace lb
