// One row of a recurrent layer (equations in ops/delta_net.h) in two tasks.
//
// The step: a team of warps has a slice of 16 columns of one value head's S in registers, each warp 32 of its rows, and
// convolves the 32 channels of k and of q that meet them. What precedes the row (S, the row before, the older inputs of
// the convolution, taps) is asked for at once before the projections are there, as if the append before had been a row
// that was accepted; where it was not, the block folds what it was and asks again. Behind the wait stand one read, sums
// within warps and one block barrier: k and q are scaled to unit length in the sums, not before. The commit: what the
// convolution keeps for the next row is written a phase later, when nobody reads it any more.
//
// Code that runs once a phase comes from memory each time, so there is little of it.
#pragma once

#include "activation.h"
#include "delta_gates.h"
#include "gated_delta.h"
#include "launch/megakernel_shape.h"
#include "warp_sums.h"

namespace lb::gpu {

inline constexpr int kStepLanes = kStepColumns / 4;  // of a row of S
inline constexpr int kOlder = kMegaTaps - 1;         // inputs of the convolution
static_assert(32 / kStepLanes * kSliceRows == 32, "a warp has as many rows of S as lanes");

// Input d + 1 rows before this one, n_accepted rows of the append before being its nearest ancestors.
LB_DEVICE const float* older_input(const CausalConv& op, int d, int n_accepted) {
  const int from = op.n_taps - 2 - d + n_accepted;  // of [history, accepted rows]
  return from < op.n_taps - 1 ? op.history + from * op.channels
                              : op.pending + op.accepted.path[from - (op.n_taps - 1)] * op.channels;
}

// A thread's channel of the convolution.
struct StepChannel {
  float taps[kMegaTaps], older[kOlder];

  LB_DEVICE StepChannel(const CausalConv& op, int c) {
    LB_UNROLL
    for (int d = 0; d < kMegaTaps; ++d) taps[d] = d < op.n_taps ? op.w[c * op.n_taps + op.n_taps - 1 - d] : 0.0f;
    older[0] = op.pending[c];
    LB_UNROLL
    for (int d = 1; d < kOlder; ++d)
      older[d] = d < op.n_taps - 1 ? op.history[(op.n_taps - 1 - d) * op.channels + c] : 0.0f;
  }
  LB_DEVICE float convolved(float x) const {
    float sum = 0;
    LB_UNROLL
    for (int d = kOlder - 1; d >= 0; --d) sum = fma(taps[d + 1], older[d], sum);
    return silu(fma(taps[0], x, sum));
  }
};

// Where a thread stands: its team's slice, its row of the team's 32 rows a warp, its channels.
struct StepPlace {
  Place at;
  int of_team, row, q, k, v;  // channels; some that there are, beyond dk and dv

  LB_DEVICE StepPlace(const GatedDelta& op, int slice, bool is_active) {
    const int head_slices = (op.dv + kStepColumns - 1) / kStepColumns, keys = op.n_k_heads * op.dk;
    of_team = warp() % ((op.dk + 31) / 32);
    row = of_team * 32 + lane();
    at.v_head = slice / head_slices;
    at.k_head = key_head(op, at.v_head);
    at.first_column = (slice - at.v_head * head_slices) * kStepColumns;
    at.column = at.first_column + lane() % kStepLanes * 4;
    at.row_lane = of_team * 32 + lane() / kStepLanes;
    at.n_row_lanes = 32 / kStepLanes;
    at.is_inside = is_active && at.column < op.dv;
    q = at.k_head * op.dk + min(row, op.dk - 1);
    k = keys + q;
    v = 2 * keys + at.v_head * op.dv + min(at.first_column + lane() % kStepColumns, op.dv - 1);
  }
};

// The accepted rows of any append folded into the team's slice of S in memory, and older inputs of the thread's
// channels to older[3][kOlder]. Every thread of the block.
LB_APART void fold_any(const DeltaTask& p, int slice, bool is_active, Path* path, float* older) {
  const GatedDelta& op = p.step;
  const StepPlace place(op, slice, is_active);
  const int n = n_accepted(op), team_threads = (op.dk + 31) / 32 * 32;
  LB_UNROLL_BY(1)
  for (int d = 0; d < p.conv.n_taps - 1; ++d) {
    const float* from = older_input(p.conv, d, n);
    store(older + d, from[place.q]);
    store(older + kOlder + d, from[place.k]);
    store(older + 2 * kOlder + d, from[place.v]);
  }
  const Fold fold = read_path(op, place.at.v_head, n, path, place.row, team_threads);
  if (n == 0 || !is_active) return;
  f32x4 s[kSliceRows];
  read_state(op, place.at, place.at.row_lane, s);
  fold_path(op, place.at, fold, path, place.at.row_lane, s);
  write_state(op, place.at, place.at.row_lane, s);
}

template <class Wait>
LB_APART void delta_step(const DeltaTask& p, int part, int n_parts, float* pool, Wait wait) {
  const GatedDelta& op = p.step;
  const CausalConv& conv = p.conv;
  const int n_slices = op.n_v_heads * ((op.dv + kStepColumns - 1) / kStepColumns);
  const int begin = n_slices * part / n_parts, end = n_slices * (part + 1) / n_parts;
  const int team_warps = (op.dk + 31) / 32, n_teams = n_warps() / team_warps, team = warp() / team_warps;

  LB_UNROLL_BY(1)
  for (int first = begin; first < end; first += n_teams) {
    const bool is_active = team < n_teams && first + team < end;  // warps that are left over have no slice
    const int slice = min(first + team, n_slices - 1);
    const StepPlace place(op, slice, is_active);
    const Place& at = place.at;
    const int v_head = at.v_head;

    f32x4 s[kSliceRows], delta = {};
    float keys[2][kSliceRows], last[2];
    read_state(op, at, at.row_lane, s);
    LB_UNROLL
    for (int b = 0; b < 2; ++b) {
      last[b] = cs_in(op, b)[v_head];
      LB_UNROLL
      for (int i = 0; i < kSliceRows; ++i)
        keys[b][i] = keys_in(op, b)[at.k_head * op.dk + min(at.row_lane + i * at.n_row_lanes, op.dk - 1)];
    }
    if (at.is_inside) delta = load<f32x4>(op.delta + v_head * op.dv + at.column);
    StepChannel q_channel(conv, place.q), k_channel(conv, place.k), v_channel(conv, place.v);
    const float a_neg = p.prepare.a_neg[v_head], dt_bias = p.prepare.dt_bias[v_head];
    const int buffer = buffer_after(op, 0);
    const bool follows_one = op.accepted.n != nullptr && *op.accepted.n == 1 && op.accepted.path[0] == 0;

    float decay = exp_nonpositive(buffer ? last[1] : last[0]);
    if (!follows_one) {
      float* older = pool + n_warps() * kStepSums + thread_id() * 3 * kOlder;
      Path* path = reinterpret_cast<Path*>(pool + n_warps() * kStepSums + n_threads() * 3 * kOlder) + team;
      fold_any(p, slice, is_active, path, older);
      read_state(op, at, at.row_lane, s);
      decay = 1;
      delta = {};
      LB_UNROLL
      for (int i = 0; i < kSliceRows; ++i) keys[0][i] = keys[1][i] = 0;
      LB_UNROLL
      for (int d = 0; d < kOlder; ++d) {
        if (d >= conv.n_taps - 1) continue;
        q_channel.older[d] = load<float>(older + d);
        k_channel.older[d] = load<float>(older + kOlder + d);
        v_channel.older[d] = load<float>(older + 2 * kOlder + d);
      }
    }
    LB_UNROLL
    for (int i = 0; i < kSliceRows; ++i) {  // what fold_path does for one row
      LB_UNROLL
      for (int c = 0; c < 4; ++c) s[i][c] = fma(buffer ? keys[1][i] : keys[0][i], delta[c], s[i][c] * decay);
    }
    write_state(op, at, at.row_lane, s);
    if (first == begin) wait();

    const float q_in = conv.x[place.q], k_in = conv.x[place.k], v_in = conv.x[place.v];
    const float alpha = p.prepare.g[v_head], raw_beta = p.prepare.beta[v_head];
    const bool has_row = place.row < op.dk;
    const float q = has_row ? q_channel.convolved(q_in) : 0.0f, k = has_row ? k_channel.convolved(k_in) : 0.0f;
    float products[8] = {};  // S^T k of four columns, S^T q of the same
    LB_UNROLL
    for (int i = 0; i < kSliceRows; ++i) {
      const int from = lane() / kStepLanes + i * (32 / kStepLanes);
      const float key = shuffle(k, from), query = shuffle(q, from);
      LB_UNROLL
      for (int c = 0; c < 4; ++c) {
        products[c] = fma(key, s[i][c], products[c]);
        products[4 + c] = fma(query, s[i][c], products[4 + c]);
      }
    }
    sum_apart(products);
    float lengths[4] = {k * k, q * q, k * q, 0};
    const float length = sum_each(lengths);
    float* sums = pool + (warp() - place.of_team) * kStepSums;  // of the team, [team_warps, kStepSums]
    float* own = sums + place.of_team * kStepSums;
    const int value = lane() / kStepLanes;  // the one that this lane has the sum of
    store(own + value / 4 * kStepColumns + lane() % kStepLanes * 4 + value % 4, products[0]);
    if (lane() % 8 == 0) store(own + 2 * kStepColumns + lane() / 8, length);
    const float g = log_decay(alpha, a_neg, dt_bias), beta = sigmoid(raw_beta), v = v_channel.convolved(v_in);
    block_barrier();
    if (is_active) {
      float state = 0;
      f32x4 lengths_of_row = {};
      LB_UNROLL_BY(1)
      for (int w = 0; w < team_warps; ++w) {
        state += load<float>(sums + w * kStepSums + lane());
        const f32x4 of_warp = load<f32x4>(sums + w * kStepSums + 2 * kStepColumns);
        LB_UNROLL
        for (int c = 0; c < 3; ++c) lengths_of_row[c] += of_warp[c];
      }
      const float k_scale = rsqrt_fast(lengths_of_row[0] + p.prepare.eps);
      const float q_scale = rsqrt_fast(lengths_of_row[1] + p.prepare.eps) * rsqrt_fast(float(op.dk));
      const float q_state = shuffle_xor(state, kStepColumns);  // the first half of the lanes has S^T k
      const int column = at.first_column + lane(), out = 1 - buffer;
      if (place.row < kStepColumns && column < op.dv) {
        const float now = exp_nonpositive(g), change = beta * (v - now * (state * k_scale));
        op.delta[v_head * op.dv + column] = change;
        op.o[v_head * op.dv + column] = q_scale * fma(lengths_of_row[2] * k_scale, change, now * q_state);
      }
      if (at.first_column == 0) {
        if (place.row == 0) cs_in(op, out)[v_head] = g;
        if (has_row && is_first_of_key_head(op, v_head)) keys_in(op, out)[at.k_head * op.dk + place.row] = k * k_scale;
      }
    }
    if (first + n_teams < end) block_barrier();  // the sums are used again
  }
}

// Four channels a thread.
template <class Wait>
LB_APART void delta_commit(const DeltaTask& p, int part, int n_parts, Wait wait) {
  const CausalConv& op = p.conv;
  const int step = 4 * n_parts * n_threads();
  wait();
  const int n_accepted = op.accepted.n ? *op.accepted.n : 0;
  LB_UNROLL_BY(1)
  for (int c = 4 * (part * n_threads() + thread_id()); c < op.channels; c += step) {
    const f32x4 x = load<f32x4>(op.x + c);
    f32x4 older[kOlder];
    LB_UNROLL
    for (int d = 0; d < kOlder; ++d) older[d] = load<f32x4>(older_input(op, min(d, op.n_taps - 2), n_accepted) + c);
    LB_UNROLL
    for (int d = 0; d < kOlder; ++d)
      if (d < op.n_taps - 1) store(op.history + (op.n_taps - 2 - d) * op.channels + c, older[d]);
    store(op.pending + c, x);
  }
}

}  // namespace lb::gpu
