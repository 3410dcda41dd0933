// Gated DeltaNet of one row (gated_delta_step), and the fold alone (gated_delta_fold). Equations: ops/delta_net.h.
//
// A block holds a slice of 16 columns of one value head's S in registers; the batched kernel holds kWideSlices slices.
// A thread holds up to four rows of four columns of each slice. The previous append wrote S and the accepted rows, so a
// step reads and folds them before wait_for_previous(). This is safe because the preceding delta_inputs lets this
// kernel start only after everything older is done. S^T k and S^T q are reduced over the rows of S by exchanges within
// a warp, then across warps, by one warp per slice.
// Bound: bandwidth, 8 dk dv bytes per value head: S is read and written once. A block waits for a chain of loads
// (accepted rows, their weights, keys). Batched launches run in waves of blocks, so each of their blocks keeps more
// bytes in flight.
#include "dialect.h"

#include "gpu/batched.h"
#include "gpu/delta_net/gated_delta.h"
#include "gpu/delta_net/step_sums.h"

namespace lb::gpu {

// kBatch: template parameter of fold_path.
template <int kSlices, int kBatch>
LB_DEVICE void gated_delta_step(const GatedDelta& op, Path* accepted, float* sums) {
  const Slice slice = slice_of_thread<kStepColumns, kSlices>(op);
  StateRows<kSlices> s;
  read_state(op, slice, slice.row_lane, s);
  const Fold fold = read_path(op, slice.v_head, n_accepted(op), accepted);
  if (fold.n > 0) {
    fold_path<kBatch>(op, slice, fold, accepted, slice.row_lane, s);
    write_state(op, slice, slice.row_lane, s);
  }
  const int out = buffer_after(op, 1);
  wait_for_previous();
  dependents_may_launch();

  // Issues all loads of this row before the first use.
  const float* k = op.k + long(slice.k_head) * op.dk;
  const float* q = op.q + long(slice.k_head) * op.dk;
  float keys[kSliceRows], queries[kSliceRows];
  LB_UNROLL
  for (int i = 0; i < kSliceRows; ++i) {
    const int d = slice.row_lane + i * slice.n_row_lanes;
    keys[i] = d < op.dk ? k[d] : 0.0f;
    queries[i] = d < op.dk ? q[d] : 0.0f;
  }
  // Warp w finishes slice w, and also slice w + n_warps() if heads are small.
  const auto value_of_lane = [&](int j) {
    const int column = slice.first_column + j * kStepColumns + lane();
    return lane() < kStepColumns && column < op.dv ? op.v[long(slice.v_head) * op.dv + column] : 0.0f;
  };
  float v = warp() < kSlices ? value_of_lane(warp()) : 0.0f;
  const float g = op.g[slice.v_head], beta = op.beta[slice.v_head];
  float k_dot_q = 0;
  if (warp() < kSlices) {
    for (int d = lane(); d < op.dk; d += 32) k_dot_q = fma(k[d], q[d], k_dot_q);
    k_dot_q = warp_sum(k_dot_q);
  }

  LB_UNROLL
  for (int j = 0; j < kSlices; ++j) {
    float both[8] = {};  // S^T k of four columns, then S^T q of them
    LB_UNROLL
    for (int i = 0; i < kSliceRows; ++i) {
      LB_UNROLL
      for (int c = 0; c < 4; ++c) {
        both[c] = fma(keys[i], s[j][i][c], both[c]);
        both[4 + c] = fma(queries[i], s[j][i][c], both[4 + c]);
      }
    }
    sum_over_warp(both, sums + (warp() * kSlices + j) * kStepSums);
  }
  block_barrier();

  for (int j = warp(); j < kSlices; j += n_warps()) {
    if (j >= n_warps()) v = value_of_lane(j);
    float state = 0;
    for (int w = 0; w < n_warps(); ++w) state += sums[(w * kSlices + j) * kStepSums + lane()];
    const float q_state = shuffle_xor(state, kStepColumns);  // lanes 0 to 15 have S^T k, 16 to 31 S^T q
    const int column = slice.first_column + j * kStepColumns + lane();
    if (lane() < kStepColumns && column < op.dv) {
      const float decay = exp_nonpositive(g), delta = beta * (v - decay * state);
      op.delta[long(slice.v_head) * op.dv + column] = delta;
      op.o[long(slice.v_head) * op.dv + column] = fma(k_dot_q, delta, decay * q_state);
    }
  }
  if (slice.first_column > 0) return;
  if (thread_id() == 0) cs_in(op, out)[slice.v_head] = g;
  if (is_first_of_key_head(op, slice.v_head))
    for (int d = thread_id(); d < op.dk; d += n_threads()) keys_in(op, out)[long(slice.k_head) * op.dk + d] = k[d];
}

LB_KERNEL(gated_delta_step_kernel, DeltaWork, kStepThreads, 1) {
  LB_SHARED(Path, path, 1);
  LB_SHARED(float, sums, kStepThreads / 32 * kStepSums);
  gated_delta_step<1, 4>(p.op, &path[0], sums);
}
LB_KERNEL(gated_delta_step_kernel_batched, Batched<GatedDelta>, kStepThreads, kWideBlocks) {
  LB_SHARED(Path, path, 1);
  LB_SHARED(float, sums, kStepThreads / 32 * kWideSlices * kStepSums);
  gated_delta_step<kWideSlices, 1>(p.of[block_id_z()], &path[0], sums);
}

LB_KERNEL(gated_delta_fold_kernel, DeltaWork, kStepThreads, 1) {
  LB_SHARED(Path, path, 1);
  const GatedDelta& op = p.op;
  dependents_may_launch();
  wait_for_previous();
  const Slice slice = slice_of_thread<kStepColumns>(op);
  const int n = n_accepted(op);
  if (n == 0) return;
  StateRows<1> s;
  read_state(op, slice, slice.row_lane, s);
  Path* accepted = &path[0];
  const Fold fold = read_path(op, slice.v_head, n, accepted);
  fold_path(op, slice, fold, accepted, slice.row_lane, s);
  write_state(op, slice, slice.row_lane, s);
}

}  // namespace lb::gpu
