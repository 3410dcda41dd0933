// The mixers and the MLP that the families share. A block points to its weights and sends ops, starting with its
// pre-norm. A block owns no memory: its buffers come from the forward pass's workspace.
#pragma once

#include <cstdint>
#include <span>
#include <variant>

#include "base/memory.h"
#include "ops/all_reduce.h"
#include "ops/delta_net.h"
#include "ops/experts.h"
#include "ops/linear.h"
#include "ops/rms_norm.h"
#include "ops/rope.h"
#include "ops/stream.h"
#include "state/sequence_state.h"
#include "weights/binder.h"

namespace lb {

// Buffers of block-sparse attention (ops/select_blocks.h), reused by every layer.
struct SparseBlocks {
  float* means;     // [n_kv_heads, head_dim, max_blocks]
  int32_t* blocks;  // [query blocks, n_kv_heads, 1 + max_blocks]
  int max_blocks;
  float alpha;
  // [1] holds 0: another layer has overwritten the means of earlier appends, so they are recomputed. null: the means
  // are valid.
  const int32_t* no_past = nullptr;

  // Buffers for appends of up to max_rows rows to a cache of `capacity` tokens. A carver without memory only counts.
  static SparseBlocks carve(Carver& carver, int n_heads, int n_kv_heads, int head_dim, int capacity, int max_rows,
                            float alpha);
};

// Rows of one sequence in an append. Products run on the rows of all sequences together. Ops that read a sequence's
// state run on its segment alone, so that its bits do not depend on its neighbours.
struct Segment {
  int first_row, rows;
  Tree tree;                           // of these rows
  const int32_t* n_past;               // [1] tokens before them, in the stream's memory
  SequenceState* state;                // must have begun the append
  int shard = 0;                       // of the state: the one in the stream's memory
  const int32_t* last_seen = nullptr;  // [rows] as in Attention, for layers with a window; null: causal
};

// How the blocks of a rank add their results to those of its peers.
struct RankSums {
  const RankMailboxes* ranks = nullptr;  // null: the model is on one rank
  float* partial = nullptr;              // [rows, hidden] this rank's share of a block's result
};

// A table of angles (ops/rope.h).
struct Angles {
  const float *cos = nullptr, *sin = nullptr;  // [rows, n_rot / 2]
};

// Which of a model's tables of angles rotates a block's heads.
enum class Rotation : uint8_t { kNone, kFirst, kSecond };

// The append in progress, as a block sees it.
struct Step {
  int rows;  // rows of all segments, perhaps followed by padding rows that no sequence keeps
  std::span<const Segment> segments;
  const float* cos;  // [rows, n_rot / 2]
  const float* sin;  // [rows, n_rot / 2]
  Activations activations;
  Carver scratch;  // each block carves from a copy, so all blocks reuse the same region
  Stream& stream;
  const SparseBlocks* sparse = nullptr;  // block-sparse attention; null: dense
  Angles second{};                       // of a model with two ropes; cos and sin are the first's
  RankSums sums{};

  Angles angles(Rotation rotation) const { return rotation == Rotation::kSecond ? second : Angles{cos, sin}; }
  bool has_one_sequence() const { return segments.size() == 1 && segments[0].rows == rows; }
};

// y = w x (+ add)
Linear product(const Matrix& w, const float* x, float* y, int rows, Activations activations, const Stream& stream,
               const float* add = nullptr);

// down(act(gate y) * up y)
struct SwiGluMlp {
  Matrix gate, up, down;
  bool is_gelu = false;  // the act is gelu, else silu
  // result = x + mlp(in.y); result may be x
  void forward(const RmsNorm& in, const float* x, float* result, const Step& step) const;
  void forward(const float* y, float* result, const Step& step) const;  // result = mlp(y)
  void carve(Carver& scratch, int rows) const;
  // Calls matrix(Matrix&) for every matrix and vector(const float*&, length) for every vector.
  void visit(auto&& matrix, auto&&) { matrix(gate), matrix(up), matrix(down); }
  // Calls group() with each set of matrices that multiply the same x.
  void groups(auto&& group) const { group({&gate, &up}), group({&down}); }
};

// Sizes of a mixture of experts; n == 0: the model has none.
struct ExpertSizes {
  int n = 0, used = 0;      // experts, and those that a row chooses
  int ffn = 0, shared = 0;  // inner dimension of an expert, and of the shared expert; 0: no shared expert
  bool is_normalized = true;
  float limit = 0;       // of a clamped activation (MixExperts); 0: plain SwiGLU
  bool is_gelu = false;  // GeGLU instead
};

// Biases of a mixture; null: none.
struct MoeBiases {
  const float* router = nullptr;               // [experts]
  const float *gate = nullptr, *up = nullptr;  // [experts, ffn]
  const float* down = nullptr;                 // [experts, hidden]
};

// sum of the chosen experts' networks (MixExperts), weighted by the router, + sigmoid(shared_gate y) * shared(y)
struct MoeBlock {
  ExpertSizes sizes;
  Matrix router;     // [experts, hidden]
  Matrix gate, up;   // [experts * ffn, hidden]; if up has no data, gate is [experts * 2 ffn, hidden]: an expert's rows
                     // of gate, then its rows of up
  Matrix down;       // [experts * hidden, ffn]
  SwiGluMlp shared;  // without data: no shared expert
  Matrix shared_gate;  // [1, hidden]
  MoeBiases biases;
  const float* router_norm = nullptr;   // [hidden] the router reads x normed with this weight; null: it reads in.y
  const float* router_scale = nullptr;  // [experts] factors of the weights, or null
  ExpertSlots slots{};  // of experts that are not all in device memory; the host's addresses are those of the matrices
  // result = x + moe(in.y); result may be x
  void forward(const RmsNorm& in, const float* x, float* result, const Step& step) const;
  void carve(Carver& scratch, int rows) const;
  void visit(auto&& matrix, auto&& vector) {
    matrix(router), matrix(gate), matrix(down);
    if (up.data != nullptr) matrix(up);
    if (has_shared()) shared.visit(matrix, vector), matrix(shared_gate);
    const size_t n = sizes.n;
    if (biases.router != nullptr) vector(biases.router, n);
    if (router_norm != nullptr) vector(router_norm, router.n_in);
    if (router_scale != nullptr) vector(router_scale, n);
    if (biases.gate != nullptr) vector(biases.gate, n * sizes.ffn), vector(biases.up, n * sizes.ffn);
    if (biases.down != nullptr) vector(biases.down, n * router.n_in);
    if (vector.slots) vector.slots(slots);
  }
  // Without the experts, which are no linear products.
  void groups(auto&& group) const {
    if (!has_shared()) return group({&router});
    group({&router, &shared_gate}), shared.groups(group);
  }
  bool has_shared() const { return sizes.shared > 0; }
  // Bytes of the experts that a row does not choose.
  size_t unused_bytes() const { return (gate.bytes() + up.bytes() + down.bytes()) / sizes.n * (sizes.n - sizes.used); }
};

// norm(dense(in.y)) + norm(experts(x)). The experts have a norm of x of their own.
struct DenseAndExperts {
  SwiGluMlp dense;
  MoeBlock experts;
  const float* experts_norm = nullptr;                                   // [hidden]
  const float *dense_post_norm = nullptr, *experts_post_norm = nullptr;  // [hidden]
  // add must be null: another norm follows.
  void forward(const RmsNorm& in, const float* add, float* result, const Step& step) const;
  void carve(Carver& scratch, int rows) const;
  void visit(auto&& matrix, auto&& vector) {
    dense.visit(matrix, vector), experts.visit(matrix, vector);
    for (const float** norm : {&experts_norm, &dense_post_norm, &experts_post_norm}) vector(*norm, experts.router.n_in);
  }
  void groups(auto&& group) const { dense.groups(group), experts.groups(group); }
};

using FeedForward = std::variant<SwiGluMlp, MoeBlock, DenseAndExperts>;

// The mixture of a feed-forward network; null: it has none.
inline const MoeBlock* find_experts(const FeedForward& ffn) {
  if (const auto* both = std::get_if<DenseAndExperts>(&ffn)) return &both->experts;
  return std::get_if<MoeBlock>(&ffn);
}

// The dense network of a feed-forward network; null: it has none.
inline const SwiGluMlp* find_mlp(const FeedForward& ffn) {
  if (const auto* both = std::get_if<DenseAndExperts>(&ffn)) return &both->dense;
  return std::get_if<SwiGluMlp>(&ffn);
}

// A layer's own input of every token: x + norm(proj(gelu(gate x) * input)), after the feed-forward network.
struct TokenInput {
  Matrix gate, proj;            // [dim, hidden], [hidden, dim]
  const float* norm = nullptr;  // [hidden]
  void carve(Carver& scratch, int rows) const { scratch.take<float>(static_cast<size_t>(rows) * gate.n_out); }
  void visit(auto&& matrix, auto&& vector) { matrix(gate), matrix(proj), vector(norm, proj.n_out); }
  void groups(auto&& group) const { group({&gate}), group({&proj}); }
  // result = proj(gelu(gate x) * input). input: rows at this stride
  void forward(const float* x, const float* input, long stride, float* result, const Step& step) const;
};

// Rows of an append whose attention to earlier tokens is scored (ops/key_scores.h).
struct ScoredRows {
  int first_row = 0, rows = 0;
  float* scores = nullptr;  // [rows, stride]
  float* parts = nullptr;   // [kKeyScoreParts, rows, n_heads, 2] scratch
  int stride = 0;
};

// Grouped-query attention with optional per-head norms of q and k, biases, sinks, and an optional output gate. With a
// gate, the q projection computes both: [n_heads][query head_dim, gate head_dim].
struct AttentionBlock {
  Matrix q, k, v, o;
  const float* q_norm = nullptr;  // [head_dim] or null
  const float* k_norm = nullptr;
  const float *q_bias = nullptr, *k_bias = nullptr, *v_bias = nullptr;  // [rows of the projection]; all or none
  const float* o_bias = nullptr;                                        // [hidden] or null
  const float* sinks = nullptr;                                         // [n_heads] or null
  const float* v_norm = nullptr;                                        // [head_dim] or null
  bool gated = false;
  int n_heads = 0, n_kv_heads = 0, head_dim = 0, n_rot = 0;
  float eps = 0;
  float scale = 0;  // of the scores; 0: 1 / sqrt(head_dim)
  RopePairs pairs = RopePairs::kHalves;
  Rotation rotation = Rotation::kFirst, q_rotation = Rotation::kFirst;  // kNone: both
  int window = 0;      // slots that a row attends to, including its own; 0: all
  int first_slot = 0;  // earlier slots are masked
  int kv_from = -1;    // layer whose keys and values this one reads; it has none. -1: its own
  // > 0: values are parts of the keys (KvLayer::key_tail), in whose tail are these pairs; v is k. q_norm then includes
  // the weight of the keys' norm where the tail has no values.
  int n_tail_pairs = 0;
  // result = x + attention(in.y); result may be x
  void forward(int layer, const RmsNorm& in, const float* x, float* result, const Step& step) const;
  void forward(int layer, const float* y, float* result, const Step& step) const;  // result = attention(y)
  // Appends unrotated keys and scores rows with unrotated queries, so scores depend on content, not on position.
  void score(int layer, const RmsNorm& in, const ScoredRows& scored, const Step& step) const;
  void carve(Carver& scratch, int rows) const;
  void visit(auto&& matrix, auto&& vector) {
    const bool is_v_k = v.data == k.data;  // values are projected like keys, by one matrix
    matrix(q), matrix(o);
    if (has_kv()) matrix(k);
    if (has_kv() && !is_v_k) matrix(v);
    if (is_v_k) v = k;
    vector(q_norm, head_dim), vector(k_norm, head_dim), vector(v_norm, head_dim);
    if (q_bias != nullptr) vector(q_bias, q.n_out), vector(k_bias, k.n_out), vector(v_bias, v.n_out);
    if (o_bias != nullptr) vector(o_bias, o.n_out);
    if (sinks != nullptr) vector(sinks, n_heads);
  }
  void groups(auto&& group) const {
    if (!has_kv())
      group({&q});
    else if (n_tail_pairs > 0)
      group({&q, &k});
    else
      group({&q, &k, &v});
    group({&o});
  }
  bool has_kv() const { return kv_from < 0; }
  int key_tail() const { return n_tail_pairs > 0 ? lb::key_tail(head_dim, 2 * n_tail_pairs) : 0; }
  int key_dim() const { return head_dim + key_tail(); }
  KvShape shape() const { return {has_kv() ? n_kv_heads : 0, head_dim, window, key_tail()}; }
};

// Appends only the keys and values of x, for rows that later rows attend to. blocks: one or two of the same shape, for
// layers from first_layer on.
void append_keys_values(std::span<const AttentionBlock* const> blocks, int first_layer, const float* x,
                        const Step& step);
void carve_keys_values(const AttentionBlock& block, Carver& scratch, int rows);

// Eps of the L2 norm of q and k: a constant of the reference implementation, not the model's norm eps.
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
  // result = x + delta_net(in.y); result may be x
  void forward(int layer, const RmsNorm& in, const float* x, float* result, const Step& step) const;
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
