// The mixers and the MLP that several families share. A block holds pointers to its weights, runs ops, beginning with
// the norm in front of it, and owns no memory: buffers come from the workspace of the forward pass.
#pragma once

#include <cstdint>

#include "base/memory.h"
#include "ops/delta_net.h"
#include "ops/linear.h"
#include "ops/rms_norm.h"
#include "ops/rope.h"
#include "ops/stream.h"
#include "state/sequence_state.h"
#include "weights/binder.h"

namespace lb {

// What a mixer sees of the append in progress.
struct Step {
  int rows;
  Tree tree;
  const float* cos;  // [rows, n_rot / 2]
  const float* sin;
  SequenceState& state;
  Activations activations;
  Carver scratch;  // passed by value: each block carves the same region anew
  Stream& stream;
};

// down(silu(gate y) * up y)
struct SwiGluMlp {
  Matrix gate, up, down;
  void forward(const RmsNorm& in, float* x, const Step& step) const;  // x += mlp(in.y)
  void carve(Carver& scratch, int rows) const;
  // Every matrix, and every vector with its length: to count them, or to put another copy in their place.
  void visit(auto&& matrix, auto&&) { matrix(gate), matrix(up), matrix(down); }
  // The matrices that are multiplied with one x each.
  void groups(auto&& group) const { group({&gate, &up}), group({&down}); }
};

// Grouped-query attention with optional per-head norms of q and k, and an optional output gate that the query
// projection carries per head: [head][query head_dim, gate head_dim].
struct AttentionBlock {
  Matrix q, k, v, o;
  const float* q_norm = nullptr;  // [head_dim] or null
  const float* k_norm = nullptr;
  bool gated = false;
  int n_heads = 0, n_kv_heads = 0, head_dim = 0, n_rot = 0;
  float eps = 0;
  RopePairs pairs = RopePairs::kHalves;
  void forward(int layer, const RmsNorm& in, float* x, const Step& step) const;  // x += attention(in.y)
  void carve(Carver& scratch, int rows) const;
  void visit(auto&& matrix, auto&& vector) {
    matrix(q), matrix(k), matrix(v), matrix(o);
    vector(q_norm, head_dim), vector(k_norm, head_dim);
  }
  void groups(auto&& group) const { group({&q, &k, &v}), group({&o}); }
  KvShape shape() const { return {n_kv_heads, head_dim}; }
};

// Added to the sum of squares when q and k are normalised (fixed in the reference implementation, not the model's norm
// eps).
inline constexpr float kDeltaL2Eps = 1e-6f;

// Gated DeltaNet: projections, causal convolution, delta rule, gated norm, output projection.
struct DeltaNetBlock {
  Matrix qkv, z, beta, alpha, out;
  const float* conv = nullptr;     // [channels, n_taps]
  const float* a_neg = nullptr;    // [n_v_heads] -exp(A_log)
  const float* dt_bias = nullptr;  // [n_v_heads]
  const float* norm = nullptr;     // [dv]
  RecurrentShape dims{};
  float eps = 0;
  void forward(int layer, const RmsNorm& in, float* x, const Step& step) const;  // x += delta_net(in.y)
  void carve(Carver& scratch, int rows) const;
  void visit(auto&& matrix, auto&& vector) {
    matrix(qkv), matrix(z), matrix(beta), matrix(alpha), matrix(out);
    vector(conv, dims.channels() * dims.n_taps), vector(norm, dims.dv);
    vector(a_neg, dims.n_v_heads), vector(dt_bias, dims.n_v_heads);
  }
  void groups(auto&& group) const { group({&qkv, &z, &beta, &alpha}), group({&out}); }
  RecurrentShape shape() const { return dims; }
};

}  // namespace lb
