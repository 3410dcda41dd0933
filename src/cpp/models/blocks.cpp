// Shared blocks as sequences of ops. Shapes in comments: T rows, H query heads, D head_dim, C conv channels.
#include "models/blocks.h"

#include <cmath>

#include "ops/attention.h"
#include "ops/linear.h"

namespace lb {
namespace {

Linear product(const Matrix& w, const float* x, float* y, const Step& step, const float* add = nullptr) {
  LB_ASSERT(step.stream.reads(w.layout));
  return {.w = w.data,
          .type = w.type,
          .x = x,
          .add = add,
          .y = y,
          .rows = step.rows,
          .n_in = w.n_in,
          .n_out = w.n_out,
          .activations = step.activations};
}

struct MlpBuffers {
  float *gate, *up;  // [T, ffn]
  MlpBuffers(Carver& scratch, int rows, int ffn)
      : gate(scratch.take<float>(size_t(rows) * ffn)), up(scratch.take<float>(size_t(rows) * ffn)) {}
};

struct AttentionBuffers {
  float* u;          // [T, H, D] or [T, H, 2D] with gates
  float *q, *k, *v;  // [T, H, D], [T, Hkv, D], [T, Hkv, D]
  float* o;          // [T, H, D]
  AttentionBuffers(Carver& scratch, const AttentionBlock& b, int rows) {
    const size_t heads = size_t(rows) * b.n_heads * b.head_dim, kv = size_t(rows) * b.n_kv_heads * b.head_dim;
    u = scratch.take<float>(heads * (b.gated ? 2 : 1));
    q = b.q_norm != nullptr || b.gated ? scratch.take<float>(heads) : u;
    k = scratch.take<float>(kv);
    v = scratch.take<float>(kv);
    o = scratch.take<float>(heads);
  }
};

struct DeltaBuffers {
  float *p, *c;     // [T, C] projection, convolved
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

Tree rows_from(const Tree& tree, int first) {
  // Only chains are longer than one call takes, so a tree is never cut.
  LB_ASSERT(first == 0 || tree.parent == nullptr);
  return tree;
}

}  // namespace

void SwiGluMlp::carve(Carver& scratch, int rows) const { MlpBuffers(scratch, rows, gate.n_out); }

void SwiGluMlp::forward(const RmsNorm& in, float* x, const Step& step) const {
  Carver scratch = step.scratch;
  const MlpBuffers b(scratch, step.rows, gate.n_out);
  run_fused(in, {{product(gate, in.y, b.gate, step), product(up, in.y, b.up, step)}, 2}, step.stream);
  run_fused(SwiGlu{b.gate, b.up, b.gate, step.rows, gate.n_out}, {{product(down, b.gate, x, step, x)}, 1}, step.stream);
}

void AttentionBlock::carve(Carver& scratch, int rows) const { AttentionBuffers(scratch, *this, rows); }

void AttentionBlock::forward(int layer, const RmsNorm& in, float* x, const Step& step) const {
  Carver scratch = step.scratch;
  const AttentionBuffers b(scratch, *this, step.rows);
  const int rows = step.rows;
  run_fused(in, {{product(q, in.y, b.u, step), product(k, in.y, b.k, step), product(v, in.y, b.v, step)}, 3},
            step.stream);

  const long u_head = head_dim * (gated ? 2L : 1L), u_row = n_heads * u_head;
  const KvLayer cache = step.state.kv(layer);
  run(AttentionPrepare{.u = b.u,
                       .q = b.q,
                       .k = b.k,
                       .v = b.v,
                       .q_norm = q_norm,
                       .k_norm = k_norm,
                       .cos = step.cos,
                       .sin = step.sin,
                       .cache = cache,
                       .n_past = step.state.n_past(),
                       .rows = rows,
                       .n_heads = n_heads,
                       .n_pairs = n_rot / 2,
                       .u_row_stride = u_row,
                       .u_head_stride = u_head,
                       .eps = eps,
                       .pairs = pairs},
      step.stream);
  run_fused(Attention{.q = b.q,
                      .gate = gated ? b.u + head_dim : nullptr,
                      .o = b.o,
                      .cache = cache,
                      .tree = step.tree,
                      .n_past = step.state.n_past(),
                      .rows = rows,
                      .n_heads = n_heads,
                      .gate_row_stride = u_row,
                      .gate_head_stride = u_head,
                      .scale = 1 / std::sqrt(static_cast<float>(head_dim))},
            {{product(o, b.o, x, step, x)}, 1}, step.stream);
}

void DeltaNetBlock::carve(Carver& scratch, int rows) const { DeltaBuffers(scratch, dims, rows); }

void DeltaNetBlock::forward(int layer, const RmsNorm& in, float* x, const Step& step) const {
  Carver scratch = step.scratch;
  const DeltaBuffers b(scratch, dims, step.rows);
  run_fused(in,
            {{product(qkv, in.y, b.p, step), product(z, in.y, b.z, step), product(beta, in.y, b.beta, step),
              product(alpha, in.y, b.g, step)},
             4},
            step.stream);

  const int channels = dims.channels(), keys = dims.n_k_heads * dims.dk;
  for (int i = 0; i < step.state.n_calls(); ++i) {
    const SequenceState::Call r = step.state.recurrent(layer, i);
    const Tree tree = rows_from(step.tree, r.first_row);
    const size_t row = r.first_row;
    float* c = b.c + row * channels;
    float* g = b.g + row * dims.n_v_heads;
    float* beta_rows = b.beta + row * dims.n_v_heads;
    const DeltaInputs inputs{.conv = {.x = b.p + row * channels,
                                      .w = conv,
                                      .history = r.layer.history,
                                      .pending = r.layer.conv_pending,
                                      .y = c,
                                      .accepted = r.accepted,
                                      .tree = tree,
                                      .rows = r.rows,
                                      .channels = channels,
                                      .n_taps = dims.n_taps},
                             .prepare = {.q = c,
                                         .k = c + keys,
                                         .g = g,
                                         .beta = beta_rows,
                                         .a_neg = a_neg,
                                         .dt_bias = dt_bias,
                                         .rows = r.rows,
                                         .n_k_heads = dims.n_k_heads,
                                         .n_v_heads = dims.n_v_heads,
                                         .dk = dims.dk,
                                         .row_stride = channels,
                                         .eps = kDeltaL2Eps}};
    const GatedDelta delta{.q = c,
                           .k = c + keys,
                           .v = c + 2 * keys,
                           .g = g,
                           .beta = beta_rows,
                           .o = b.o + row * dims.n_v_heads * dims.dv,
                           .S = r.layer.S,
                           .k_pending = {r.layer.k_pending[0], r.layer.k_pending[1]},
                           .cs_pending = {r.layer.cs_pending[0], r.layer.cs_pending[1]},
                           .delta = r.layer.delta_pending,
                           .buffer = r.buffer,
                           .flip = r.flip,
                           .accepted = r.accepted,
                           .tree = tree,
                           .rows = r.rows,
                           .n_k_heads = dims.n_k_heads,
                           .n_v_heads = dims.n_v_heads,
                           .dk = dims.dk,
                           .dv = dims.dv,
                           .row_stride = channels,
                           .order = dims.order};
    if (i + 1 < step.state.n_calls()) {
      run(inputs, step.stream);
      run(delta, step.stream);
      continue;
    }
    run_fused(DeltaNet{inputs, delta, {b.o, b.z, norm, b.o, step.rows, dims.n_v_heads, dims.dv, eps}},
              {{product(out, b.o, x, step, x)}, 1}, step.stream);
  }
}

}  // namespace lb
