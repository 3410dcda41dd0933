// One channel of CausalConv for one row, held by one thread. Index d counts ancestors: 0 is the row itself, 1 its
// parent.
#pragma once

#include "gpu/activation.h"
#include "gpu/delta_net/shape.h"

namespace lb::gpu {

struct ConvChannel {
  float taps[kMaxTaps] = {}, inputs[kMaxTaps] = {};

  LB_DEVICE void read_taps(const CausalConv& op, int c) {
    LB_UNROLL
    for (int d = 0; d < kMaxTaps; ++d)
      if (d < op.n_taps) taps[d] = op.w[long(c) * op.n_taps + op.n_taps - 1 - d];
  }
  // Reads inputs[1...] from history and the previous append's accepted rows.
  LB_DEVICE void read_older(const CausalConv& op, int c) {
    const int n_past = op.n_taps - 1, n_accepted = op.accepted.n ? *op.accepted.n : 0;
    LB_UNROLL
    for (int d = 1; d < kMaxTaps; ++d) {
      if (d > n_past) continue;
      const int from = n_past - d + n_accepted;  // index in [history, accepted rows]
      inputs[d] = from < n_past ? op.history[long(from) * op.channels + c]
                                : op.pending[long(op.accepted.path[from - n_past]) * op.channels + c];
    }
  }
  // The convolution's sum over inputs[1...].
  LB_DEVICE float older() const {
    float sum = 0;
    LB_UNROLL
    for (int d = kMaxTaps - 1; d > 0; --d) sum = fma(taps[d], inputs[d], sum);
    return sum;
  }
  LB_DEVICE float convolved() const { return silu(fma(taps[0], inputs[0], older())); }
  // Stores the inputs as history and as the pending row.
  LB_DEVICE void write(const CausalConv& op, int c) const {
    LB_UNROLL
    for (int d = 1; d < kMaxTaps; ++d)
      if (d < op.n_taps) op.history[long(op.n_taps - 1 - d) * op.channels + c] = inputs[d];
    op.pending[c] = inputs[0];
  }
};

}  // namespace lb::gpu
