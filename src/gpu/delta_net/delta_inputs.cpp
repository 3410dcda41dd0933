// DeltaInputs of one row: y = silu(taps * [history, x]), q and k normalised per head, gates, and the state of
// causal_conv. A block handles the channels of one head, one per thread. The taps are loaded before the previous kernel
// has ended. The last block computes the gates.
// Bound: latency; 4 (2 n_taps + 2) bytes per channel.
#include "dialect.h"

#include "gpu/batched.h"
#include "gpu/delta_net/conv_channel.h"
#include "gpu/delta_net/gates.h"

namespace lb::gpu {

// dependents_may_launch() follows the wait, so dependents may rely on everything older than this kernel.
LB_DEVICE void delta_inputs(const DeltaInputs& p, float* scratch) {
  const CausalConv& conv = p.conv;
  const DeltaPrepare& prepare = p.prepare;
  if (block_id() == n_blocks() - 1) {
    wait_for_previous();
    dependents_may_launch();
    for (int head = thread_id(); head < prepare.n_v_heads; head += n_threads()) prepare_gates(prepare, 0, head);
    return;
  }
  const int c = block_id() * prepare.dk + thread_id();
  const bool is_inside = thread_id() < prepare.dk && c < conv.channels;
  ConvChannel channel;
  if (is_inside) channel.read_taps(conv, c);
  wait_for_previous();
  dependents_may_launch();

  if (is_inside) {
    channel.read_older(conv, c);
    channel.inputs[0] = conv.x[c];
  }
  float y = channel.convolved();
  if (block_id() < 2 * prepare.n_k_heads) {
    const float factor = block_id() < prepare.n_k_heads ? 1.0f / sqrt(float(prepare.dk)) : 1.0f;
    const float squares = block_sum(is_inside ? y * y : 0.0f, scratch);
    y *= factor / sqrt(squares + prepare.eps);
  }
  if (!is_inside) return;
  conv.y[c] = y;
  channel.write(conv, c);
}

LB_KERNEL(delta_inputs_kernel, DeltaInputs, kInputThreads, 1) {
  LB_SHARED(float, scratch, 32);
  delta_inputs(p, scratch);
}
LB_KERNEL(delta_inputs_kernel_batched, Batched<DeltaInputs>, kInputThreads, 1) {
  LB_SHARED(float, scratch, 32);
  delta_inputs(p.of[block_id_z()], scratch);
}

}  // namespace lb::gpu
