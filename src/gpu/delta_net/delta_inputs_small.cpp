// DeltaInputs of 2 to 64 rows (by_row: 1 to 64), a tree or a chain, for dk = 128: y = silu(taps * [history, x]), q and
// k normalised per head, gates, and the state of causal_conv.
//
// A block handles 128 channels: a head of q or k, or 128 channels of v. All rows are in shared memory, after the
// history. A warp handles every eighth row, four channels per lane. The last blocks compute one gate per thread.
// Bound: latency; 12 bytes per value.
#include "dialect.h"

#include "gpu/batched.h"
#include "gpu/delta_net/gates.h"
#include "gpu/delta_net/shape.h"

namespace lb::gpu {

inline constexpr int kPastRows = kChainTaps - 1;

// dependents_may_launch() follows the wait, so dependents may rely on everything older than this kernel.
template <class Parents>
LB_DEVICE void delta_inputs_small(const DeltaInputs& p, Parents parents) {
  auto inputs = dynamic_shared<f32x4>();  // [history rows, oldest first, then rows][32 lanes]
  const CausalConv& conv = p.conv;
  const DeltaPrepare& prepare = p.prepare;
  if (block_id() >= conv.channels / kChainDk) {
    wait_for_previous();
    dependents_may_launch();
    const int i = (block_id() - conv.channels / kChainDk) * kSmallInputThreads + thread_id();
    if (i < conv.rows * prepare.n_v_heads) prepare_gates(prepare, i / prepare.n_v_heads, i % prepare.n_v_heads);
    return;
  }
  constexpr int kWarps = kSmallInputThreads / 32, kEach = kMaxTree / kWarps;
  const int head = block_id(), c = head * kChainDk + 4 * lane();
  f32x4 taps[4];  // value j: channel c + j; taps[kPastRows] multiplies the row itself
  LB_UNROLL
  for (int j = 0; j < 4; ++j) taps[j] = load<f32x4>(conv.w + long(c + j) * kChainTaps);
  wait_for_previous();
  dependents_may_launch();

  f32x4 own[kEach] = {};
  LB_UNROLL
  for (int i = 0; i < kEach; ++i) {
    const int row = warp() + i * kWarps;
    if (row < conv.rows) own[i] = load<f32x4>(conv.x + long(row) * conv.channels + c);
  }
  if (warp() < kPastRows) {
    const int from = warp() + (conv.accepted.n ? *conv.accepted.n : 0);  // index in [history, accepted rows]
    inputs[warp() * 32 + lane()] =
        from < kPastRows ? load<f32x4>(conv.history + long(from) * conv.channels + c)
                         : load<f32x4>(conv.pending + long(conv.accepted.path[from - kPastRows]) * conv.channels + c);
  }
  if (thread_id() < conv.rows)
    parents[thread_id()] = conv.tree.parent ? max(conv.tree.parent[thread_id()], -1) : thread_id() - 1;
  LB_UNROLL
  for (int i = 0; i < kEach; ++i) {
    const int row = warp() + i * kWarps;
    if (row < conv.rows) inputs[(kPastRows + row) * 32 + lane()] = own[i];
  }
  block_barrier();

  const bool is_q = head < prepare.n_k_heads, is_unit = head < 2 * prepare.n_k_heads;
  const float factor = is_q ? 1.0f / sqrt(float(kChainDk)) : 1.0f;
  LB_UNROLL_BY(1)
  for (int row = warp(); row < conv.rows; row += kWarps) {
    f32x4 y = {};
    int source = row;  // source row; negative: history, -1 the youngest
    LB_UNROLL
    for (int d = 0; d < kChainTaps; ++d) {
      const f32x4 x = inputs[(kPastRows + source) * 32 + lane()];
      LB_UNROLL
      for (int j = 0; j < 4; ++j) y[j] = fma(taps[j][kPastRows - d], x[j], y[j]);
      source = source > 0 ? int(parents[source]) : source - 1;
    }
    float squares = 0;
    LB_UNROLL
    for (int j = 0; j < 4; ++j) {
      y[j] = silu(y[j]);
      squares = fma(y[j], y[j], squares);
    }
    if (is_unit) {
      const float scale = factor * rsqrt_fast(warp_sum(squares) + prepare.eps);
      LB_UNROLL
      for (int j = 0; j < 4; ++j) y[j] *= scale;
    }
    store(conv.y + long(row) * conv.channels + c, y);
  }
  if (warp() < kPastRows) {
    const f32x4 past = inputs[warp() * 32 + lane()];
    store(conv.history + long(warp()) * conv.channels + c, past);
  }
  LB_UNROLL
  for (int i = 0; i < kEach; ++i) {
    const int row = warp() + i * kWarps;
    if (row < conv.rows) store(conv.pending + long(row) * conv.channels + c, own[i]);
  }
}

LB_KERNEL(delta_inputs_small_kernel, DeltaInputs, kSmallInputThreads, 1) {
  LB_SHARED(int32_t, parents, kMaxTree);
  delta_inputs_small(p, parents);
}
LB_KERNEL(delta_inputs_small_kernel_batched, Batched<DeltaInputs>, kSmallInputThreads, 1) {
  LB_SHARED(int32_t, parents, kMaxTree);
  delta_inputs_small(p.of[block_id_z()], parents);
}

}  // namespace lb::gpu
