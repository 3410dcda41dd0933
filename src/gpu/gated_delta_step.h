// One row of Gated DeltaNet (equations in ops/delta_net.h) over a slice of 16 columns of one value head's S, in
// registers: a thread four columns of up to four rows. S^T k and S^T q are summed over the rows by exchanging halves
// within a warp, then over the warps by the team's first one.
#pragma once

#include "gated_delta.h"

namespace lb::gpu {

inline constexpr int kStepSums = 2 * kStepColumns;  // S^T k and S^T q of a slice
inline constexpr int kLanesOfRow = kStepColumns / 4;

// v[i] += the other half's v[i], each half of the lanes keeping one half of the values.
template <int kHalf>
LB_DEVICE void exchange_halves(float (&v)[8]) {
  const bool is_upper = lane() & kLanesOfRow * kHalf;
  LB_UNROLL
  for (int i = 0; i < kHalf; ++i) {
    const float lower = v[i], upper = v[i + kHalf];
    v[i] = (is_upper ? upper : lower) + shuffle_xor(is_upper ? lower : upper, kLanesOfRow * kHalf);
  }
}

// What a row brings: k and q of its key head, v of the thread's column (of the first kStepColumns threads), gates.
struct StepRow {
  const float* k;  // [dk], prepared
  const float* q;
  float v, g, beta;
};

// The slice held before the row, with the accepted rows of the previous append folded in. Every thread of the block.
LB_DEVICE void read_slice(const GatedDelta& op, const Place& at, Path* path, int thread, int team_threads,
                          bool is_active, f32x4 (&s)[kSliceRows]) {
  read_state(op, at, at.row_lane, s);
  const Fold fold = read_path(op, at.v_head, n_accepted(op), path, thread, team_threads);
  if (fold.n == 0 || !is_active) return;
  fold_path(op, at, fold, path, at.row_lane, s);
  write_state(op, at, at.row_lane, s);
}

// Every thread of the block, `thread` of a team of whole warps; sums: kStepSums for each warp of the team.
LB_DEVICE void step_slice(const GatedDelta& op, const Place& at, const StepRow& row, const f32x4 (&s)[kSliceRows],
                          float* sums, int thread, int team_threads, bool is_active) {
  // Everything that the row brings is asked for at once.
  const int own_warp = thread / 32;
  float keys[kSliceRows], queries[kSliceRows];
  LB_UNROLL
  for (int i = 0; i < kSliceRows; ++i) {
    const int d = at.row_lane + i * at.n_row_lanes;
    keys[i] = d < op.dk ? row.k[d] : 0.0f;
    queries[i] = d < op.dk ? row.q[d] : 0.0f;
  }
  float k_dot_q = 0;
  if (own_warp == 0) {
    for (int d = lane(); d < op.dk; d += 32) k_dot_q = fma(row.k[d], row.q[d], k_dot_q);
    k_dot_q = warp_sum(k_dot_q);
  }

  float both[8] = {};  // S^T k of four columns, S^T q of the same
  LB_UNROLL
  for (int i = 0; i < kSliceRows; ++i) {
    LB_UNROLL
    for (int c = 0; c < 4; ++c) {
      both[c] = fma(keys[i], s[i][c], both[c]);
      both[4 + c] = fma(queries[i], s[i][c], both[4 + c]);
    }
  }
  exchange_halves<4>(both);
  exchange_halves<2>(both);
  exchange_halves<1>(both);
  const int value = lane() / kLanesOfRow;  // the one that this lane has the sum of
  store(sums + own_warp * kStepSums + value / 4 * kStepColumns + lane() % kLanesOfRow * 4 + value % 4, both[0]);
  block_barrier();
  if (!is_active) return;

  const int out = buffer_after(op, 1);
  if (own_warp == 0) {
    float state = 0;
    for (int w = 0; w < team_threads / 32; ++w) state += load<float>(sums + w * kStepSums + lane());
    const float q_state = shuffle_xor(state, kStepColumns);  // the first half of the lanes has S^T k
    const int column = at.first_column + thread;
    if (thread < kStepColumns && column < op.dv) {
      const float decay = exp_nonpositive(row.g), delta = row.beta * (row.v - decay * state);
      op.delta[long(at.v_head) * op.dv + column] = delta;
      op.o[long(at.v_head) * op.dv + column] = fma(k_dot_q, delta, decay * q_state);
    }
  }
  if (at.first_column > 0) return;
  if (thread == 0) cs_in(op, out)[at.v_head] = row.g;
  if (is_first_of_key_head(op, at.v_head))
    for (int d = thread; d < op.dk; d += team_threads) keys_in(op, out)[long(at.k_head) * op.dk + d] = row.k[d];
}

}  // namespace lb::gpu
