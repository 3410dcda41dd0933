// DeltaInputs of a long chain, for dk = 128: y = silu(taps * [history, x]), q and k normalised per head, gates, and
// the state of causal_conv.
//
// A warp handles eight rows of 128 channels, four per lane: a head of q or k, or 128 channels of v. It keeps all rows
// that the taps reach in registers, so each row is read once. A head's norm is a sum over the warp. Grid x: heads of
// 128 channels, then one block of gates; y: tiles of rows. Blocks of the first rows update the state, as in
// causal_conv.
// Bound: bandwidth, 8 bytes per value; 3 of every 8 rows are read twice.
#include "dialect.h"

#include "gpu/delta_net/gates.h"
#include "gpu/delta_net/shape.h"

namespace lb::gpu {

inline constexpr int kWarpRows = 8, kPastRows = kChainTaps - 1;
static_assert(kWarpRows * kChainInputThreads / 32 == kChainInputRows && kPastRows <= kChainInputThreads / 32);

LB_KERNEL(delta_inputs_chain_kernel, DeltaInputs, kChainInputThreads, 6) {
  const CausalConv& conv = p.conv;
  const DeltaPrepare& prepare = p.prepare;
  const int first_of_block = block_id_y() * kChainInputRows;
  if (block_id() == n_blocks() - 1) {
    wait_for_previous();
    dependents_may_launch();  // after the wait, so dependents may rely on everything older than this kernel
    const int n = min(kChainInputRows, conv.rows - first_of_block) * prepare.n_v_heads;
    for (int i = thread_id(); i < n; i += n_threads())
      prepare_gates(prepare, first_of_block + i / prepare.n_v_heads, i % prepare.n_v_heads);
    return;
  }
  const int head = block_id(), c = head * kChainDk + 4 * lane();
  f32x4 taps[4];  // value j: channel c + j; taps[kPastRows] multiplies the row itself
  LB_UNROLL
  for (int j = 0; j < 4; ++j) taps[j] = load<f32x4>(conv.w + long(c + j) * kChainTaps);
  wait_for_previous();
  dependents_may_launch();

  const int first = first_of_block + warp() * kWarpRows;
  const auto input = [&](int row) { return load<f32x4>(conv.x + long(row) * conv.channels + c); };
  f32x4 x[kPastRows + kWarpRows];  // rows first - 3 to first + 7
  LB_UNROLL
  for (int i = 0; i < kPastRows + kWarpRows; ++i) {
    const int row = first + i - kPastRows;
    x[i] = {};
    if (row >= 0 && row < conv.rows) x[i] = input(row);
  }
  if (first == 0) {
    const int n_accepted = conv.accepted.n ? *conv.accepted.n : 0;
    LB_UNROLL
    for (int i = 0; i < kPastRows; ++i) {
      const int from = i + n_accepted;  // index in [history, accepted rows]
      x[i] = from < kPastRows
                 ? load<f32x4>(conv.history + long(from) * conv.channels + c)
                 : load<f32x4>(conv.pending + long(conv.accepted.path[from - kPastRows]) * conv.channels + c);
    }
  }
  if (first_of_block == 0) block_barrier();  // history and pending rows have been read

  const bool is_q = head < prepare.n_k_heads, is_unit = head < 2 * prepare.n_k_heads;
  const float factor = is_q ? 1.0f / sqrt(float(kChainDk)) : 1.0f;
  LB_UNROLL
  for (int i = 0; i < kWarpRows; ++i) {
    f32x4 y;
    float squares = 0;
    LB_UNROLL
    for (int j = 0; j < 4; ++j) {
      float sum = 0;
      LB_UNROLL
      for (int d = 0; d < kChainTaps; ++d) sum = fma(taps[j][kPastRows - d], x[i + kPastRows - d][j], sum);
      y[j] = silu(sum);
      squares = fma(y[j], y[j], squares);
    }
    if (is_unit) {
      const float scale = factor / sqrt(warp_sum(squares) + prepare.eps);
      LB_UNROLL
      for (int j = 0; j < 4; ++j) y[j] *= scale;
    }
    if (first + i < conv.rows) store(conv.y + long(first + i) * conv.channels + c, y);
  }

  if (first_of_block > 0) return;
  const int last_chunk = (conv.rows - 1) / kMaxTree * kMaxTree;  // its first row; never in this block's tile
  if (warp() < kPastRows)
    store(conv.history + long(warp()) * conv.channels + c, input(last_chunk - kPastRows + warp()));
  for (int row = last_chunk + warp(); row < conv.rows; row += n_warps())
    store(conv.pending + long(row - last_chunk) * conv.channels + c, input(row));
}

}  // namespace lb::gpu
