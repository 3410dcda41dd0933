// One row of a recurrent layer (equations in ops/delta_net.h) in two tasks.
//
// The step: a team of warps has a slice of 16 columns of one value head's S in registers, each warp 32 of its rows, and
// convolves the 32 channels of k and of q that meet them. What precedes the row (S, the row before, the older inputs of
// the convolution, taps) is asked for at once before the projections are there. Behind the wait stand one read, sums
// within warps, one block barrier: k and q are scaled to unit length in the sums, not before. The commit: what the
// convolution keeps for the next row is written a phase later, when nobody reads it any more.
#pragma once

#include "conv_channel.h"
#include "delta_gates.h"
#include "gated_delta.h"
#include "launch/megakernel_shape.h"
#include "warp_sums.h"

namespace lb::gpu {

inline constexpr int kStepLanes = kStepColumns / 4;  // of a row of S
static_assert(32 / kStepLanes * kSliceRows == 32, "a warp has as many rows of S as lanes");

// Whether the append before was a row that was accepted, as decoding leaves it.
LB_DEVICE bool follows_one_row(const Accepted& accepted) {
  return accepted.n != nullptr && *accepted.n == 1 && accepted.path[0] == 0;
}

// The slice as it is before the row, the accepted rows of the append before folded in: fold_path for one row, all of
// whose reads are under way at once. Every thread of the block.
LB_DEVICE void advance_slice(const GatedDelta& op, const Place& at, bool follows_one, bool is_active, Path* path,
                             int thread, int team_threads, f32x4 (&s)[kSliceRows]) {
  read_state(op, at, at.row_lane, s);
  float keys[2][kSliceRows], last[2];
  f32x4 delta = {};
  LB_UNROLL
  for (int b = 0; b < 2; ++b) {
    last[b] = cs_in(op, b)[at.v_head];
    LB_UNROLL
    for (int i = 0; i < kSliceRows; ++i) {
      const int d = at.row_lane + i * at.n_row_lanes;
      keys[b][i] = d < op.dk ? keys_in(op, b)[long(at.k_head) * op.dk + d] : 0.0f;
    }
  }
  if (at.is_inside) delta = load<f32x4>(op.delta + long(at.v_head) * op.dv + at.column);
  if (!follows_one) {
    const Fold fold = read_path(op, at.v_head, n_accepted(op), path, thread, team_threads);
    if (fold.n == 0 || !is_active) return;
    fold_path(op, at, fold, path, at.row_lane, s);
  } else {
    const int b = buffer_after(op, 0);
    const float decay = exp_nonpositive(b ? last[1] : last[0]);
    LB_UNROLL
    for (int i = 0; i < kSliceRows; ++i) {
      const float key = b ? keys[1][i] : keys[0][i];
      LB_UNROLL
      for (int c = 0; c < 4; ++c) s[i][c] = fma(key, delta[c], s[i][c] * decay);
    }
  }
  write_state(op, at, at.row_lane, s);
}

// A channel of the convolution of which all but the row's own input is known.
struct OpenChannel {
  int channel = -1;  // none
  float tap = 0, older = 0;

  LB_DEVICE OpenChannel(const CausalConv& op, int c, bool follows_one) : channel(c) {
    if (c < 0) return;
    ConvChannel all;
    all.read_taps(op, c);
    if (follows_one)
      all.read_after_one(op, c);
    else
      all.read_older(op, c);
    tap = all.taps[0];
    older = all.older();
  }
  LB_DEVICE float convolved(const CausalConv& op) const {
    return channel < 0 ? 0.0f : silu(fma(tap, op.x[channel], older));
  }
};

template <class Wait>
LB_APART void delta_step(const DeltaTask& p, int part, int n_parts, float* pool, Wait wait) {
  const GatedDelta& op = p.step;
  const CausalConv& conv = p.conv;
  const int head_slices = (op.dv + kStepColumns - 1) / kStepColumns, n_slices = op.n_v_heads * head_slices;
  const int begin = n_slices * part / n_parts, end = n_slices * (part + 1) / n_parts;
  const int team_warps = (op.dk + 31) / 32, n_teams = n_warps() / team_warps;
  const int team = warp() / team_warps, of_team = warp() % team_warps;  // those left over are a team that has nothing
  const int row = of_team * 32 + lane(), keys = op.n_k_heads * op.dk;
  float* sums = pool + (warp() - of_team) * kStepSums;  // of the team, [team_warps, kStepSums]
  Path* path = reinterpret_cast<Path*>(pool + n_warps() * kStepSums) + team;

  for (int first = begin; first < end; first += n_teams) {
    const bool is_active = team < n_teams && first + team < end;
    const int slice = min(first + team, n_slices - 1);
    Place at;
    at.v_head = slice / head_slices;
    at.k_head = key_head(op, at.v_head);
    at.first_column = slice % head_slices * kStepColumns;
    at.column = at.first_column + lane() % kStepLanes * 4;
    at.row_lane = of_team * 32 + lane() / kStepLanes;
    at.n_row_lanes = 32 / kStepLanes;
    at.is_inside = is_active && at.column < op.dv;
    const bool follows_one = follows_one_row(op.accepted);
    f32x4 s[kSliceRows];
    advance_slice(op, at, follows_one, is_active, path, row, 32 * team_warps, s);
    const int q_channel = at.k_head * op.dk + row, column = at.first_column + lane();
    const bool has_column = is_active && of_team == 0 && lane() < kStepColumns && column < op.dv;
    const OpenChannel open_q(conv, row < op.dk ? q_channel : -1, follows_one);
    const OpenChannel open_k(conv, row < op.dk ? keys + q_channel : -1, follows_one);
    const OpenChannel open_v(conv, has_column ? 2 * keys + at.v_head * op.dv + column : -1, follows_one);
    const float a_neg = p.prepare.a_neg[at.v_head], dt_bias = p.prepare.dt_bias[at.v_head];
    if (first == begin) wait();

    const float alpha = p.prepare.g[at.v_head], raw_beta = p.prepare.beta[at.v_head];
    const float k = open_k.convolved(conv), q = open_q.convolved(conv), v = open_v.convolved(conv);
    float products[8] = {};  // S^T k of four columns, S^T q of the same
    LB_UNROLL
    for (int i = 0; i < kSliceRows; ++i) {
      const int from = lane() / kStepLanes + i * at.n_row_lanes;
      const float key = shuffle(k, from), query = shuffle(q, from);
      LB_UNROLL
      for (int c = 0; c < 4; ++c) {
        products[c] = fma(key, s[i][c], products[c]);
        products[4 + c] = fma(query, s[i][c], products[4 + c]);
      }
    }
    sum_apart(products);
    const int value = lane() / kStepLanes;  // the one that this lane has the sum of
    float* own = sums + of_team * kStepSums;
    store(own + value / 4 * kStepColumns + lane() % kStepLanes * 4 + value % 4, products[0]);
    float lengths[4] = {k * k, q * q, k * q, 0};
    const float length = sum_each(lengths);
    if (lane() % 8 == 0) store(own + 2 * kStepColumns + lane() / 8, length);
    const float g = log_decay(alpha, a_neg, dt_bias), decay = exp_nonpositive(g), beta = sigmoid(raw_beta);
    block_barrier();

    float state = 0, k_squares = 0, q_squares = 0, k_dot_q = 0;
    for (int w = 0; w < team_warps; ++w) {
      const float* of_warp = sums + w * kStepSums;
      state += load<float>(of_warp + lane());
      const f32x4 of_row = load<f32x4>(of_warp + 2 * kStepColumns);
      k_squares += of_row[0];
      q_squares += of_row[1];
      k_dot_q += of_row[2];
    }
    const float k_scale = 1.0f / sqrt(k_squares + p.prepare.eps);
    const float q_scale = 1.0f / sqrt(float(op.dk)) / sqrt(q_squares + p.prepare.eps);
    const float q_state = shuffle_xor(state, kStepColumns) * q_scale;  // the first half of the lanes has S^T k
    if (has_column) {
      const long to = long(at.v_head) * op.dv + column;
      const float delta = beta * (v - decay * (state * k_scale));
      op.delta[to] = delta;
      op.o[to] = fma(k_dot_q * k_scale * q_scale, delta, decay * q_state);
    }
    if (is_active && at.first_column == 0) {
      const int out = buffer_after(op, 1);
      if (row == 0) cs_in(op, out)[at.v_head] = g;
      if (row < op.dk && is_first_of_key_head(op, at.v_head))
        keys_in(op, out)[long(at.k_head) * op.dk + row] = k * k_scale;
    }
    if (first + n_teams < end) block_barrier();  // the sums are used again
  }
}

// Four channels a thread.
template <class Wait>
LB_APART void delta_commit(const DeltaTask& p, int part, int n_parts, Wait wait) {
  const CausalConv& op = p.conv;
  const int n_past = op.n_taps - 1, step = 4 * n_parts * n_threads();
  wait();
  const int n_accepted = op.accepted.n ? *op.accepted.n : 0;
  for (int c = 4 * (part * n_threads() + thread_id()); c < op.channels; c += step) {
    f32x4 inputs[kMaxTaps] = {load<f32x4>(op.x + c)};  // of the row itself, its parent, and so on
    LB_UNROLL
    for (int d = 1; d < kMaxTaps; ++d) {
      if (d > n_past) continue;
      const int from = n_past - d + n_accepted;  // of [history, accepted rows]
      inputs[d] = load<f32x4>((from < n_past ? op.history + long(from) * op.channels
                                             : op.pending + long(op.accepted.path[from - n_past]) * op.channels) +
                              c);
    }
    LB_UNROLL
    for (int d = 1; d < kMaxTaps; ++d)
      if (d <= n_past) store(op.history + long(n_past - d) * op.channels + c, inputs[d]);
    store(op.pending + c, inputs[0]);
  }
}

}  // namespace lb::gpu
