// Gated DeltaNet, one row (equations in ops/delta_net.h), and a fold alone. A block has a slice of one value head's S.
//
// The state and the accepted rows were written by the previous append, so a step reads and folds them before
// wait_for_previous(): delta_inputs, which it follows, lets it start only when everything before delta_inputs is
// done. Bound: bandwidth, 8 dk dv bytes a value head: S is read and written once.
#include "dialect.h"

#include "gated_delta_step.h"

namespace lb::gpu {

LB_KERNEL(gated_delta_step_kernel, DeltaWork, kStepThreads, 1) {
  LB_SHARED(Path, path, 1);
  LB_SHARED(float, sums, kStepThreads / 32 * kStepSums);
  const GatedDelta& op = p.op;
  const Place at = place_in_slice<kStepColumns>(op);
  f32x4 s[kSliceRows];
  Path* accepted = &path[0];
  read_slice(op, at, accepted, thread_id(), n_threads(), true, s);
  wait_for_previous();
  dependents_may_launch();

  const int column = at.first_column + thread_id();
  const bool has_column = thread_id() < kStepColumns && column < op.dv;
  const StepRow row = {.k = op.k + long(at.k_head) * op.dk,
                       .q = op.q + long(at.k_head) * op.dk,
                       .v = has_column ? op.v[long(at.v_head) * op.dv + column] : 0.0f,
                       .g = op.g[at.v_head],
                       .beta = op.beta[at.v_head]};
  step_slice(op, at, row, s, sums, thread_id(), n_threads(), true);
}

LB_KERNEL(gated_delta_fold_kernel, DeltaWork, kStepThreads, 1) {
  LB_SHARED(Path, path, 1);
  const GatedDelta& op = p.op;
  dependents_may_launch();
  wait_for_previous();
  const Place at = place_in_slice<kStepColumns>(op);
  const int n = n_accepted(op);
  if (n == 0) return;
  f32x4 s[kSliceRows];
  read_state(op, at, at.row_lane, s);
  Path* accepted = &path[0];
  const Fold fold = read_path(op, at.v_head, n, accepted);
  fold_path(op, at, fold, accepted, at.row_lane, s);
  write_state(op, at, at.row_lane, s);
}

}  // namespace lb::gpu
