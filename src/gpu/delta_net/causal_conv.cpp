// y[r,c] = silu(sum_j w[c,j] input(r, n_taps-1-j)[c]), computed after appending the accepted rows to the history.
//
// A block handles 32 channels of one chunk of rows; eight teams of 32 threads share the rows. Blocks of the first chunk
// also update the state: they read history and pending rows before the barrier, and overwrite both after it with the
// last chunk's rows. Blocks of later chunks read only x.
// Bound: bandwidth, 8 bytes per value plus 8 per value of the last chunk; taps come from cache.
#include "dialect.h"

#include "gpu/activation.h"
#include "gpu/delta_net/shape.h"

namespace lb::gpu {

inline constexpr int kTeams = kConvThreads / kConvChannels;
static_assert(kTeams >= kMaxTaps - 1, "a team for each row of history");

LB_KERNEL(causal_conv_kernel, CausalConv, kConvThreads, 1) {
  LB_SHARED(float, past, (kMaxTaps - 1) * kConvChannels);  // [n_past, 32], oldest first
  dependents_may_launch();
  wait_for_previous();
  const int channel = thread_id() % kConvChannels, team = thread_id() / kConvChannels;
  const int c = block_id() * kConvChannels + channel;
  const int n_past = p.n_taps - 1, first_row = block_id_y() * kMaxTree;
  const bool is_inside = c < p.channels, keeps_state = first_row == 0;
  if (keeps_state && is_inside && team < n_past) {
    const int from = team + (p.accepted.n ? *p.accepted.n : 0);  // index in [history, accepted rows]
    past[team * kConvChannels + channel] = from < n_past
                                               ? p.history[long(from) * p.channels + c]
                                               : p.pending[long(p.accepted.path[from - n_past]) * p.channels + c];
  }
  block_barrier();
  if (!is_inside) return;

  float taps[kMaxTaps];  // taps[d] multiplies the d-th ancestor
  LB_UNROLL
  for (int d = 0; d < kMaxTaps; ++d) taps[d] = p.rows > 0 && d <= n_past ? p.w[long(c) * p.n_taps + n_past - d] : 0.0f;
  const int end = min(p.rows, first_row + kMaxTree);
  for (int r = first_row + team; r < end; r += kTeams) {
    float sum = 0;
    int row = r, n_left = n_past;  // n_left: unused rows of history
    LB_UNROLL
    for (int d = 0; d < kMaxTaps; ++d) {
      if (d > n_past) continue;
      float input;
      if (row >= 0) {
        input = p.x[long(row) * p.channels + c];
        row = p.tree.parent ? p.tree.parent[row] : row - 1;
      } else {
        input = past[--n_left * kConvChannels + channel];
      }
      sum = fma(taps[d], input, sum);
    }
    p.y[long(r) * p.channels + c] = silu(sum);
  }

  if (!keeps_state) return;
  const int last_chunk = p.rows > 0 ? (p.rows - 1) / kMaxTree * kMaxTree : 0;
  if (team < n_past) {
    const float kept = past[team * kConvChannels + channel];
    p.history[long(team) * p.channels + c] =
        last_chunk > 0 ? p.x[long(last_chunk - n_past + team) * p.channels + c] : kept;
  }
  for (int r = last_chunk + team; r < p.rows; r += kTeams)
    p.pending[long(r - last_chunk) * p.channels + c] = p.x[long(r) * p.channels + c];
}

}  // namespace lb::gpu
