// DeltaInputs of one row: y = silu(taps * [history, x]), the heads of q and k of unit length, gates, and the state as
// causal_conv leaves it. A block has as many channels as a head, a thread one of them: its history, its pending row and
// its tap weights, which are asked for before the previous kernel has ended. The last block has the gates.
// Bound: latency; 4 (2 n_taps + 2) bytes a channel.
#include "dialect.h"

#include "delta_gates.h"
#include "launch/delta_net_shape.h"

namespace lb::gpu {

// dependents_may_launch() comes second: who starts then may rely on all that lies before this kernel.
LB_KERNEL(delta_inputs_kernel, DeltaInputs, kInputThreads, 1) {
  LB_SHARED(float, scratch, 32);
  const CausalConv& conv = p.conv;
  const DeltaPrepare& prepare = p.prepare;
  if (block_id() == n_blocks() - 1) {
    wait_for_previous();
    dependents_may_launch();
    for (int head = thread_id(); head < prepare.n_v_heads; head += n_threads()) prepare_gates(prepare, 0, head);
    return;
  }
  const int c = block_id() * prepare.dk + thread_id(), n_past = conv.n_taps - 1;
  const bool is_inside = thread_id() < prepare.dk && c < conv.channels;
  float taps[kMaxTaps] = {};  // of the row itself first
  LB_UNROLL
  for (int d = 0; d < kMaxTaps; ++d)
    if (is_inside && d <= n_past) taps[d] = conv.w[long(c) * conv.n_taps + n_past - d];
  wait_for_previous();
  dependents_may_launch();

  float inputs[kMaxTaps] = {};  // of the row itself, its parent, and so on
  if (is_inside) {
    inputs[0] = conv.x[c];
    const int n_accepted = conv.accepted.n ? *conv.accepted.n : 0;
    LB_UNROLL
    for (int d = 1; d < kMaxTaps; ++d) {
      if (d > n_past) continue;
      const int from = n_past - d + n_accepted;  // of [history, accepted rows]
      inputs[d] = from < n_past ? conv.history[long(from) * conv.channels + c]
                                : conv.pending[long(conv.accepted.path[from - n_past]) * conv.channels + c];
    }
  }
  float sum = 0;
  LB_UNROLL
  for (int d = 0; d < kMaxTaps; ++d) sum = d <= n_past ? fma(taps[d], inputs[d], sum) : sum;
  float y = silu(sum);
  if (block_id() < 2 * prepare.n_k_heads) {
    const float factor = block_id() < prepare.n_k_heads ? 1.0f / sqrt(float(prepare.dk)) : 1.0f;
    const float squares = block_sum(is_inside ? y * y : 0.0f, scratch);
    y *= factor / sqrt(squares + prepare.eps);
  }
  if (!is_inside) return;
  conv.y[c] = y;
  LB_UNROLL
  for (int d = 1; d < kMaxTaps; ++d)
    if (d <= n_past) conv.history[long(n_past - d) * conv.channels + c] = inputs[d];
  conv.pending[c] = inputs[0];
}

}  // namespace lb::gpu
