// Shared blocks as sequences of ops. Shapes: T rows of the append, H query heads, Hkv KV heads, D head_dim, C conv
// channels, VH value heads.
#include "models/blocks.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "ops/attention.h"
#include "ops/key_scores.h"
#include "ops/linear.h"
#include "ops/select_blocks.h"

namespace lb {

Linear product(const Matrix& w, const float* x, float* y, int rows, Activations activations, const Stream& stream,
               const float* add) {
  LB_ASSERT(stream.reads(w.layout));
  return {.w = w.data,
          .type = w.type,
          .x = x,
          .add = add,
          .y = y,
          .rows = rows,
          .n_in = w.n_in,
          .n_out = w.n_out,
          .activations = activations};
}

namespace {

// Collects per-segment ops of a pass: ops of one row are batched into shared launches, all others are sent immediately.
template <class Op>
class SingleRows {
 public:
  explicit SingleRows(Stream& stream) : stream_(stream) {}
  void add(const Op& op) { rows_of(op) == 1 ? void(ops_[n_++] = op) : stream_.run(op); }
  void run() {
    if (n_ > 0) stream_.run(std::span<const Op>(ops_.data(), n_));
  }

 private:
  static int rows_of(const DeltaInputs& op) { return op.conv.rows; }
  static int rows_of(const auto& op) { return op.rows; }

  Stream& stream_;
  std::array<Op, kMaxTree> ops_;
  size_t n_ = 0;
};

Linear product(const Matrix& w, const float* x, float* y, const Step& step, const float* add = nullptr) {
  return product(w, x, y, step.rows, step.activations, step.stream, add);
}

// The last product of a block: result = w x (+ add). On several ranks w has some of its columns, so the product is this
// rank's share, and finish() adds the shares of all ranks.
class BlockResult {
 public:
  BlockResult(const float* add, float* result, const Step& step) : add_(add), result_(result), step_(step) {}

  bool is_shared() const { return step_.sums.ranks != nullptr; }
  float* to() const { return is_shared() ? step_.sums.partial : result_; }
  const float* add() const { return is_shared() ? nullptr : add_; }
  LinearGroup group(const Matrix& w, const float* x) const { return {{product(w, x, to(), step_, add())}, 1}; }
  void finish(int dim) const {
    if (!is_shared()) return;
    run(AllReduce{.x = to(), .add = add_, .y = result_, .count = long(step_.rows) * dim, .ranks = *step_.sums.ranks},
        step_.stream);
  }

 private:
  const float* add_;
  float* result_;
  const Step& step_;
};

struct MlpBuffers {
  float *gate, *up;  // [T, ffn]
  MlpBuffers(Carver& scratch, int rows, int ffn)
      : gate(scratch.take<float>(size_t(rows) * ffn)), up(scratch.take<float>(size_t(rows) * ffn)) {}
};

struct MoeBuffers {
  float* router_x;              // [T, hidden] of a router with a norm of its own
  float* logits;                // [T, experts]
  float* weights;               // [T, k]
  int32_t* experts;             // [T, k]
  float *shared_gate, *shared;  // [T], [T, hidden]
  float *mlp_gate, *mlp_up;     // [T, shared ffn]
  MoeBuffers(Carver& scratch, const MoeBlock& block, int rows) {
    const ExpertSizes& sizes = block.sizes;
    const size_t t = rows, choices = t * sizes.used, hidden = block.router.n_in, shared_ffn = t * sizes.shared;
    router_x = scratch.take<float>(block.router_norm != nullptr ? t * hidden : 0);
    logits = scratch.take<float>(t * sizes.n);
    weights = scratch.take<float>(choices);
    experts = scratch.take<int32_t>(choices);
    shared_gate = scratch.take<float>(block.has_shared() ? t : 0);
    shared = scratch.take<float>(block.has_shared() ? t * hidden : 0);
    mlp_gate = scratch.take<float>(shared_ffn);
    mlp_up = scratch.take<float>(shared_ffn);
  }
};

struct BothBuffers {
  float *dense, *experts;  // [T, hidden]
  BothBuffers(Carver& scratch, const DenseAndExperts& block, int rows) {
    const size_t values = size_t(rows) * block.experts.router.n_in;
    dense = scratch.take<float>(values), experts = scratch.take<float>(values);
  }
};

struct AttentionBuffers {
  float* u;          // [T, H, D] or [T, H, 2D] with gates
  float *q, *k, *v;  // [T, H, key_dim], [T, Hkv, D], [T, Hkv, key_dim]
  float* o;          // [T, H, D]
  AttentionBuffers(Carver& scratch, const AttentionBlock& b, int rows) {
    const size_t heads = size_t(rows) * b.n_heads * b.head_dim, kv_heads = size_t(rows) * b.n_kv_heads;
    u = scratch.take<float>(heads * (b.gated ? 2 : 1));
    q = b.q_norm != nullptr || b.gated ? scratch.take<float>(size_t(rows) * b.n_heads * b.key_dim()) : u;
    k = scratch.take<float>(kv_heads * b.head_dim);
    v = scratch.take<float>(kv_heads * b.key_dim());
    o = scratch.take<float>(heads);
  }
};

struct DeltaBuffers {
  float *p, *c;     // [T, C] projected, convolved
  float *z, *o;     // [T, VH*dv]
  float *beta, *g;  // [T, VH]
  DeltaBuffers(Carver& scratch, const RecurrentShape& r, int rows) {
    const size_t channels = size_t(rows) * r.channels(), values = size_t(rows) * r.n_v_heads * r.dv;
    p = scratch.take<float>(channels);
    c = scratch.take<float>(channels);
    z = scratch.take<float>(values);
    o = scratch.take<float>(values);
    beta = scratch.take<float>(size_t(rows) * r.n_v_heads);
    g = scratch.take<float>(size_t(rows) * r.n_v_heads);
  }
};

// A range of rows of the buffers. In c the keys follow the queries and the values follow the keys.
struct DeltaRows {
  float *p, *c;     // [rows, C]
  float *beta, *g;  // [rows, VH]
  float* o;         // [rows, VH*dv]
  DeltaRows(const DeltaBuffers& b, const RecurrentShape& r, size_t row)
      : p(b.p + row * r.channels()),
        c(b.c + row * r.channels()),
        beta(b.beta + row * r.n_v_heads),
        g(b.g + row * r.n_v_heads),
        o(b.o + row * r.n_v_heads * r.dv) {}
};

LinearGroup gate_and_up(const SwiGluMlp& mlp, const float* y, const MlpBuffers& b, const Step& step) {
  return {{product(mlp.gate, y, b.gate, step), product(mlp.up, y, b.up, step)}, 2};
}

// result = down(act(gate) * up) (+ add)
void activate(const SwiGluMlp& mlp, const MlpBuffers& b, const float* add, float* result, const Step& step) {
  const BlockResult out(add, result, step);
  const LinearGroup down = out.group(mlp.down, b.gate);
  const int rows = step.rows, dim = mlp.gate.n_out;
  if (mlp.is_gelu)
    run_fused(GeGlu{b.gate, b.up, b.gate, rows, dim, dim}, down, step.stream);
  else
    run_fused(SwiGlu{b.gate, b.up, b.gate, rows, dim}, down, step.stream);
  out.finish(mlp.down.n_out);
}

LinearGroup queries_keys_values(const AttentionBlock& block, const float* y, const AttentionBuffers& b,
                                const Step& step) {
  if (!block.has_kv()) return {{product(block.q, y, b.u, step)}, 1};
  if (block.n_tail_pairs > 0) return {{product(block.q, y, b.u, step), product(block.k, y, b.k, step)}, 2};
  return {{product(block.q, y, b.u, step), product(block.k, y, b.k, step), product(block.v, y, b.v, step)}, 3};
}

// Without queries: keys and values only.
AttentionPrepare prepare(const AttentionBlock& block, int layer, const Segment& rows, const Step& step) {
  const size_t first = static_cast<size_t>(rows.first_row) * (block.n_rot / 2);
  const Angles angles = step.angles(block.rotation);
  return {.u = nullptr,
          .q = nullptr,
          .k = nullptr,
          .v = nullptr,
          .q_bias = block.q_bias,
          .k_bias = block.k_bias,
          .v_bias = block.v_bias,
          .q_norm = block.q_norm,
          .k_norm = block.k_norm,
          .cos = angles.cos + first,
          .sin = angles.sin + first,
          .cache = rows.state->kv(block.has_kv() ? layer : block.kv_from, rows.shard),
          .n_past = rows.n_past,
          .rows = rows.rows,
          .n_heads = 0,
          .n_pairs = block.rotation == Rotation::kNone ? 0 : block.n_rot / 2,
          .n_tail_pairs = block.n_tail_pairs,
          .u_row_stride = 0,
          .u_head_stride = 0,
          .eps = block.eps,
          .pairs = block.pairs,
          .v_norm = block.v_norm};
}

// The same, with queries.
AttentionPrepare prepare(const AttentionBlock& block, int layer, const AttentionBuffers& b, const Segment& rows,
                         const Step& step) {
  AttentionPrepare op = prepare(block, layer, rows, step);
  op.n_heads = block.n_heads;
  op.u_head_stride = block.head_dim * (block.gated ? 2L : 1L);
  op.u_row_stride = block.n_heads * op.u_head_stride;
  const long first = rows.first_row, kv_head = first * block.n_kv_heads;
  op.u = b.u + first * op.u_row_stride;
  op.q = b.q + first * block.n_heads * block.key_dim();
  if (block.has_kv()) {
    op.k = b.k + kv_head * block.head_dim;
    op.v = b.v + kv_head * block.key_dim();
  }
  if (block.q_rotation != block.rotation) {
    const Angles own = step.angles(block.q_rotation);
    op.q_cos = own.cos + first * (block.n_rot / 2);
    op.q_sin = own.sin + first * (block.n_rot / 2);
  }
  return op;
}

float softmax_scale(const AttentionBlock& block) {
  return block.scale > 0 ? block.scale : 1 / std::sqrt(static_cast<float>(block.head_dim));
}

// The key blocks that the prepared rows attend to.
SelectBlocks select_blocks(const AttentionBlock& block, const AttentionPrepare& rows, const Step& step) {
  const SparseBlocks& sparse = *step.sparse;
  const bool makes_all = sparse.no_past != nullptr;
  run(KeyMeans{.cache = rows.cache,
               .means = sparse.means,
               .n_past = makes_all ? sparse.no_past : rows.n_past,
               .rows = rows.rows + (makes_all ? step.segments[0].state->n_tokens() : 0),
               .max_blocks = sparse.max_blocks},
      step.stream);
  const SelectBlocks op = {.q = rows.q,
                           .means = sparse.means,
                           .blocks = sparse.blocks,
                           .n_past = rows.n_past,
                           .rows = rows.rows,
                           .n_heads = block.n_heads,
                           .n_kv_heads = block.n_kv_heads,
                           .head_dim = block.head_dim,
                           .n_query_blocks = query_blocks(rows.rows, block.n_heads / block.n_kv_heads),
                           .list_size = sparse.max_blocks + 1,
                           .max_blocks = sparse.max_blocks,
                           .scale = softmax_scale(block),
                           .alpha = sparse.alpha};
  run(op, step.stream);
  return op;
}

// Attention of a segment's prepared rows.
Attention attention(const AttentionBlock& block, const AttentionPrepare& op, const AttentionBuffers& b,
                    const Segment& rows, const Step& step) {
  const bool is_sparse = step.sparse != nullptr && block.window == 0;  // a window is short enough for all of its keys
  const SelectBlocks selection = is_sparse ? select_blocks(block, op, step) : SelectBlocks{};
  return {.q = op.q,
          .gate = block.gated ? op.u + block.head_dim : nullptr,
          .o = b.o + static_cast<long>(rows.first_row) * block.n_heads * block.head_dim,
          .cache = op.cache,
          .tree = rows.tree,
          .n_past = rows.n_past,
          .rows = rows.rows,
          .n_heads = block.n_heads,
          .gate_row_stride = op.u_row_stride,
          .gate_head_stride = op.u_head_stride,
          .scale = softmax_scale(block),
          .first_slot = block.first_slot,
          .window = block.window,
          .sinks = block.sinks,
          .blocks = selection.blocks,
          .n_query_blocks = selection.n_query_blocks,
          .list_size = selection.list_size,
          .last_seen = block.window > 0 ? rows.last_seen : nullptr,
          .by_row = rows.state->options().by_row && rows.tree.parent != nullptr};
}

void finish(const AttentionBlock& block, const BlockResult& out, float* result, const Step& step) {
  out.finish(block.o.n_out);
  if (block.o_bias != nullptr) run(AddBias{result, block.o_bias, step.rows, block.o.n_out}, step.stream);
}

// result = o(attention over the layer's slots and the projected rows) (+ add)
void attend(const AttentionBlock& block, int layer, const AttentionBuffers& b, const float* add, float* result,
            const Step& step) {
  const BlockResult out(add, result, step);
  if (step.has_one_sequence()) {
    const AttentionPrepare op = prepare(block, layer, b, step.segments[0], step);
    run(op, step.stream);
    run_fused(attention(block, op, b, step.segments[0], step), out.group(block.o, b.o), step.stream);
    return finish(block, out, result, step);
  }
  SingleRows<AttentionPrepare> prepares(step.stream);
  SingleRows<Attention> attentions(step.stream);
  for (const Segment& rows : step.segments) {
    const AttentionPrepare op = prepare(block, layer, b, rows, step);
    prepares.add(op);
    attentions.add(attention(block, op, b, rows, step));
  }
  prepares.run();
  attentions.run();
  run(out.group(block.o, b.o), step.stream);
  finish(block, out, result, step);
}

DeltaInputs delta_inputs(const DeltaNetBlock& block, const SequenceState::Call& call, const Tree& tree,
                         const DeltaRows& rows) {
  const RecurrentShape& r = block.dims;
  return {.conv = {.x = rows.p,
                   .w = block.conv,
                   .history = call.layer.history,
                   .pending = call.layer.conv_pending,
                   .y = rows.c,
                   .accepted = call.accepted,
                   .tree = tree,
                   .rows = call.rows,
                   .channels = r.channels(),
                   .n_taps = r.n_taps},
          .prepare = {.q = rows.c,
                      .k = rows.c + r.n_k_heads * r.dk,
                      .g = rows.g,
                      .beta = rows.beta,
                      .a_neg = block.a_neg,
                      .dt_bias = block.dt_bias,
                      .rows = call.rows,
                      .n_k_heads = r.n_k_heads,
                      .n_v_heads = r.n_v_heads,
                      .dk = r.dk,
                      .row_stride = r.channels(),
                      .eps = kDeltaL2Eps},
          .by_row = call.by_row};
}

GatedDelta gated_delta(const DeltaNetBlock& block, const SequenceState::Call& call, const Tree& tree,
                       const DeltaRows& rows) {
  const RecurrentShape& r = block.dims;
  const int keys = r.n_k_heads * r.dk;
  return {.q = rows.c,
          .k = rows.c + keys,
          .v = rows.c + 2 * keys,
          .g = rows.g,
          .beta = rows.beta,
          .o = rows.o,
          .S = call.layer.S,
          .k_pending = {call.layer.k_pending[0], call.layer.k_pending[1]},
          .cs_pending = {call.layer.cs_pending[0], call.layer.cs_pending[1]},
          .delta = call.layer.delta_pending,
          .buffer = call.buffer,
          .flip = call.flip,
          .accepted = call.accepted,
          .tree = tree,
          .rows = call.rows,
          .n_k_heads = r.n_k_heads,
          .n_v_heads = r.n_v_heads,
          .dk = r.dk,
          .dv = r.dv,
          .row_stride = r.channels(),
          .order = r.order,
          .by_row = call.by_row};
}

}  // namespace

SparseBlocks SparseBlocks::carve(Carver& carver, int n_heads, int n_kv_heads, int head_dim, int capacity, int max_rows,
                                 float alpha) {
  const int max_blocks = sparse_blocks(capacity);
  const size_t n_lists = static_cast<size_t>(query_blocks(max_rows, n_heads / n_kv_heads)) * n_kv_heads;
  float* means = carver.take<float>(static_cast<size_t>(max_blocks) * n_kv_heads * head_dim);
  return {means, carver.take<int32_t>(n_lists * (max_blocks + 1)), max_blocks, alpha};
}

void SwiGluMlp::carve(Carver& scratch, int rows) const { MlpBuffers(scratch, rows, gate.n_out); }

void SwiGluMlp::forward(const RmsNorm& in, const float* x, float* result, const Step& step) const {
  Carver scratch = step.scratch;
  const MlpBuffers b(scratch, step.rows, gate.n_out);
  run_fused(in, gate_and_up(*this, in.y, b, step), step.stream);
  activate(*this, b, x, result, step);
}

void SwiGluMlp::forward(const float* y, float* result, const Step& step) const {
  Carver scratch = step.scratch;
  const MlpBuffers b(scratch, step.rows, gate.n_out);
  run(gate_and_up(*this, y, b, step), step.stream);
  activate(*this, b, nullptr, result, step);
}

void MoeBlock::carve(Carver& scratch, int rows) const { MoeBuffers(scratch, *this, rows); }

void MoeBlock::forward(const RmsNorm& in, const float* x, float* result, const Step& step) const {
  Carver scratch = step.scratch;
  const MoeBuffers b(scratch, *this, step.rows);
  const int rows = step.rows, k = sizes.used;
  const auto expert_matrix = [&](const Matrix& w, int first_row, const float* bias) {
    LB_ASSERT(step.stream.reads(w.layout));
    return ExpertMatrix{w.data, w.type, w.n_out / sizes.n, first_row, bias};
  };
  LB_ASSERT(result != in.y);
  const BlockResult out(x, result, step);
  const float* router_x = in.y;
  if (router_norm != nullptr) {
    RmsNorm own = in;
    own.w = router_norm, own.y = b.router_x;
    run(own, step.stream);
    router_x = b.router_x;
  }
  MixtureLayer layer = {.in = in,
                        .routers = {{product(router, router_x, b.logits, step)}, 1},
                        .route = {b.logits, biases.router, router_scale, b.experts, b.weights, rows, sizes.n, k,
                                  sizes.is_normalized, slots}};
  if (has_shared()) {
    layer.routers.products[layer.routers.n++] = product(shared_gate, in.y, b.shared_gate, step);
    layer.shared_inputs = {{product(shared.gate, in.y, b.mlp_gate, step), product(shared.up, in.y, b.mlp_up, step)}, 2};
    layer.shared_act = {b.mlp_gate, b.mlp_up, b.mlp_gate, rows, sizes.shared};
    layer.shared_output = {{product(shared.down, b.mlp_gate, b.shared, step)}, 1};
  }
  const bool is_joined = up.data == nullptr;
  ExpertSlots with_host = slots;
  with_host.gate = gate.host_experts, with_host.up = up.host_experts, with_host.down = down.host_experts;
  layer.mix = {.gate = expert_matrix(gate, 0, biases.gate),
               .up = expert_matrix(is_joined ? gate : up, is_joined ? sizes.ffn : 0, biases.up),
               .down = expert_matrix(down, 0, biases.down),
               .x = in.y,
               .experts = b.experts,
               .weights = b.weights,
               .shared = has_shared() ? b.shared : nullptr,
               .shared_gate = has_shared() ? b.shared_gate : nullptr,
               .add = out.add(),
               .y = out.to(),
               .rows = rows,
               .k = k,
               .n_experts = sizes.n,
               .dim = router.n_in,
               .ffn = sizes.ffn,
               .limit = sizes.limit,
               .is_gelu = sizes.is_gelu,
               .activations = step.activations,
               .slots = with_host};
  step.stream.run_mixture(layer);
  out.finish(router.n_in);
}

void DenseAndExperts::carve(Carver& scratch, int rows) const {
  BothBuffers(scratch, *this, rows);
  Carver of_dense, of_experts;  // in the same memory
  dense.carve(of_dense, rows), experts.carve(of_experts, rows);
  scratch.take<std::byte>(std::max(of_dense.used(), of_experts.used()));
}

void DenseAndExperts::forward(const RmsNorm& in, const float* add, float* result, const Step& step) const {
  LB_ASSERT(add == nullptr);
  Carver scratch = step.scratch;
  const BothBuffers b(scratch, *this, step.rows);
  Step inner = step;
  inner.scratch = scratch;
  const int hidden = experts.router.n_in;
  dense.forward(in, nullptr, b.dense, inner);
  run(RmsNorm{b.dense, dense_post_norm, b.dense, step.rows, 1, hidden, hidden, hidden, in.eps}, step.stream);
  RmsNorm own = in;
  own.w = experts_norm;
  experts.forward(own, nullptr, b.experts, inner);
  run(AddNorm{b.dense, b.experts, experts_post_norm, result, step.rows, hidden, in.eps, 1}, step.stream);
}

void TokenInput::forward(const float* x, const float* input, long stride, float* result, const Step& step) const {
  Carver scratch = step.scratch;
  float* b = scratch.take<float>(static_cast<size_t>(step.rows) * gate.n_out);
  run(LinearGroup{{product(gate, x, b, step)}, 1}, step.stream);
  run_fused(GeGlu{b, input, b, step.rows, gate.n_out, stride}, {{product(proj, b, result, step)}, 1}, step.stream);
}

void AttentionBlock::carve(Carver& scratch, int rows) const { AttentionBuffers(scratch, *this, rows); }

void AttentionBlock::forward(int layer, const RmsNorm& in, const float* x, float* result, const Step& step) const {
  Carver scratch = step.scratch;
  const AttentionBuffers b(scratch, *this, step.rows);
  run_fused(in, queries_keys_values(*this, in.y, b, step), step.stream);
  attend(*this, layer, b, x, result, step);
}

void AttentionBlock::forward(int layer, const float* y, float* result, const Step& step) const {
  Carver scratch = step.scratch;
  const AttentionBuffers b(scratch, *this, step.rows);
  run(queries_keys_values(*this, y, b, step), step.stream);
  attend(*this, layer, b, nullptr, result, step);
}

void AttentionBlock::score(int layer, const RmsNorm& in, const ScoredRows& scored, const Step& step) const {
  Carver scratch = step.scratch;
  const AttentionBuffers b(scratch, *this, step.rows);
  run_fused(in, queries_keys_values(*this, in.y, b, step), step.stream);
  LB_ASSERT(step.segments.size() == 1);
  AttentionPrepare op = prepare(*this, layer, b, step.segments[0], step);
  op.n_pairs = 0;
  run(op, step.stream);
  if (scored.rows == 0) return;
  run(KeyScores{.q = b.q + long(scored.first_row) * n_heads * head_dim,
                .cache = op.cache,
                .scores = scored.scores,
                .parts = scored.parts,
                .n_past = op.n_past,
                .first_row = scored.first_row,
                .rows = scored.rows,
                .n_heads = n_heads,
                .stride = scored.stride,
                .scale = softmax_scale(*this)},
      step.stream);
}

void carve_keys_values(const AttentionBlock& block, Carver& scratch, int rows) {
  for (int i = 0; i < kMaxProducts; ++i)
    scratch.take<float>(static_cast<size_t>(rows) * block.n_kv_heads * block.head_dim);
}

void append_keys_values(std::span<const AttentionBlock* const> blocks, int first_layer, const float* x,
                        const Step& step) {
  LB_ASSERT(2 * blocks.size() <= kMaxProducts);
  Carver scratch = step.scratch;
  LinearGroup group{};
  for (const AttentionBlock* block : blocks)
    for (const Matrix* w : {&block->k, &block->v})
      group.products[group.n++] = product(*w, x, scratch.take<float>(static_cast<size_t>(step.rows) * w->n_out), step);
  run(group, step.stream);
  for (size_t i = 0; i < blocks.size(); ++i) {
    SingleRows<AttentionPrepare> prepares(step.stream);
    for (const Segment& rows : step.segments) {
      AttentionPrepare op = prepare(*blocks[i], first_layer + static_cast<int>(i), rows, step);
      op.k = group.products[2 * i].y + static_cast<long>(rows.first_row) * blocks[i]->k.n_out;
      op.v = group.products[2 * i + 1].y + static_cast<long>(rows.first_row) * blocks[i]->v.n_out;
      prepares.add(op);
    }
    prepares.run();
  }
}

void DeltaNetBlock::carve(Carver& scratch, int rows) const { DeltaBuffers(scratch, dims, rows); }

void DeltaNetBlock::forward(int layer, const RmsNorm& in, const float* x, float* result, const Step& step) const {
  Carver scratch = step.scratch;
  const DeltaBuffers b(scratch, dims, step.rows);
  run_fused(in,
            {{product(qkv, in.y, b.p, step), product(z, in.y, b.z, step), product(beta, in.y, b.beta, step),
              product(alpha, in.y, b.g, step)},
             4},
            step.stream);

  const GatedRmsNorm gated_norm{b.o, b.z, norm, b.o, step.rows, dims.n_v_heads, dims.dv, eps};
  const BlockResult output(x, result, step);
  SingleRows<DeltaInputs> inputs_of_rows(step.stream);
  SingleRows<GatedDelta> deltas(step.stream);
  for (const Segment& segment : step.segments) {
    const int n_calls = segment.state->n_calls(segment.shard);
    for (int i = 0; i < n_calls; ++i) {
      const SequenceState::Call call = segment.state->recurrent(layer, i, segment.shard);
      LB_ASSERT(call.first_row == 0 || segment.tree.parent == nullptr);  // one call processes a whole tree
      const DeltaRows rows(b, dims, segment.first_row + call.first_row);
      const DeltaInputs inputs = delta_inputs(*this, call, segment.tree, rows);
      const GatedDelta delta = gated_delta(*this, call, segment.tree, rows);
      if (step.has_one_sequence() && i + 1 == n_calls) {
        run_fused(DeltaNet{inputs, delta, gated_norm}, output.group(out, b.o), step.stream);
        return output.finish(out.n_out);
      }
      inputs_of_rows.add(inputs);
      deltas.add(delta);
    }
  }
  inputs_of_rows.run();
  deltas.run();
  run_fused(gated_norm, output.group(out, b.o), step.stream);
  output.finish(out.n_out);
}

}  // namespace lb
