// One row of a recurrent layer in two tasks. The step convolves and normalises q and k for each slice anew: S, the
// accepted row and the older inputs of the convolution are read before the projections are there. What the convolution
// keeps for the next row is written a phase later, when nobody reads it any more.
#pragma once

#include "conv_channel.h"
#include "delta_gates.h"
#include "gated_delta_step.h"
#include "launch/megakernel_shape.h"

namespace lb::gpu {

// Asks for what the previous row has left, as if it had been accepted: which row it was is known a few dependent loads
// later, and by then its lines are in L2.
LB_DEVICE void prefetch_state(const DeltaTask& p, const Place& at, int thread) {
  const GatedDelta& op = p.step;
  const CausalConv& conv = p.conv;
  const int keys = op.n_k_heads * op.dk, i = 32 * thread;  // a line of floats each
  const int first[] = {at.k_head * op.dk, keys + at.k_head * op.dk, 2 * keys + at.v_head * op.dv + at.first_column};
  if (thread == 0) {
    prefetch(op.cs_pending[0] + at.v_head);
    prefetch(op.cs_pending[1] + at.v_head);
    prefetch(op.delta + long(at.v_head) * op.dv + at.first_column);
  }
  if (i < op.dk) {
    prefetch(op.k_pending[0] + at.k_head * op.dk + i);
    prefetch(op.k_pending[1] + at.k_head * op.dk + i);
    LB_UNROLL
    for (int j = 0; j < 3; ++j) {
      const int c = min(first[j] + i, conv.channels - 1);
      prefetch(conv.pending + c);
      for (int d = 0; d < conv.n_taps - 1; ++d) prefetch(conv.history + long(d) * conv.channels + c);
    }
  }
}

template <class Wait>
LB_APART void delta_step(const DeltaTask& p, int part, int n_parts, float* pool, Wait wait) {
  constexpr int kHeld = 3;  // channels of a thread: q, k and the slice of v have at most 3 team_threads
  const GatedDelta& op = p.step;
  const CausalConv& conv = p.conv;
  const int n_slices = op.n_v_heads * ((op.dv + kStepColumns - 1) / kStepColumns);
  const int begin = int(long(n_slices) * part / n_parts), end = int(long(n_slices) * (part + 1) / n_parts);
  const int state_threads = delta_state_threads(op.dk), head_channels = (op.dk + 31) / 32 * 32;
  const int n_teams = max(min(n_threads() / state_threads, end - begin), 1);
  const int team_threads = n_threads() / n_teams / 32 * 32;
  const int team = thread_id() / team_threads, thread = thread_id() % team_threads;
  const int keys = op.n_k_heads * op.dk;

  float* slot = pool + team * delta_slot_floats(op.dk);  // those left over have one too
  Path* path = reinterpret_cast<Path*>(slot);
  float* sums = slot + 2 * kMaxTree;
  float* values = sums + kStepSums * (kMegaThreads / 32);  // [q, k, v of the slice], heads padded to whole warps
  float* squares = values + 2 * head_channels + 32;

  for (int first = begin; first < end || first == begin; first += n_teams) {
    const bool is_active = team < n_teams && first + team < end;
    Place at = place_in_slice<kStepColumns>(op, min(first + team, n_slices - 1), thread, state_threads);
    at.is_inside = at.is_inside && is_active && thread < state_threads;
    prefetch_state(p, at, thread);
    f32x4 s[kSliceRows];
    read_slice(op, at, path, thread, team_threads, is_active, s);

    int channels[kHeld];  // -1: none
    float taps[kHeld], older[kHeld];
    LB_UNROLL
    for (int j = 0; j < kHeld; ++j) {
      const int i = thread + j * team_threads, of_head = i % head_channels;
      channels[j] = -1;
      if (i < 2 * head_channels) {
        if (of_head < op.dk) channels[j] = (i < head_channels ? 0 : keys) + at.k_head * op.dk + of_head;
      } else if (i - 2 * head_channels < kStepColumns) {
        const int column = at.first_column + i - 2 * head_channels;
        if (column < op.dv) channels[j] = 2 * keys + at.v_head * op.dv + column;
      }
      taps[j] = older[j] = 0;
      if (channels[j] < 0) continue;
      ConvChannel channel;
      channel.read_taps(conv, channels[j]);
      channel.read_older(conv, channels[j]);
      taps[j] = channel.taps[0];
      older[j] = channel.older();
    }
    const float a_neg = p.prepare.a_neg[at.v_head], dt_bias = p.prepare.dt_bias[at.v_head];
    if (first == begin) wait();

    const float alpha = p.prepare.g[at.v_head], beta = p.prepare.beta[at.v_head];
    float y[kHeld];
    LB_UNROLL
    for (int j = 0; j < kHeld; ++j) {
      const int i = thread + j * team_threads;
      y[j] = 0;
      if (channels[j] >= 0) y[j] = silu(fma(taps[j], conv.x[channels[j]], older[j]));
      const float of_warp = warp_sum(y[j] * y[j]);
      if (lane() == 0 && i < 2 * head_channels) store(squares + i / 32, of_warp);
    }
    block_barrier();
    const int head_warps = head_channels / 32;
    float scales[2];
    LB_UNROLL
    for (int j = 0; j < 2; ++j) {
      const float sum = warp_sum(lane() < head_warps ? load<float>(squares + j * head_warps + lane()) : 0.0f);
      scales[j] = (j == 0 ? 1.0f / sqrt(float(op.dk)) : 1.0f) / sqrt(sum + p.prepare.eps);
    }
    LB_UNROLL
    for (int j = 0; j < kHeld; ++j) {
      const int i = thread + j * team_threads;
      if (i < 2 * head_channels + 32)
        store(values + i, i < head_channels ? y[j] * scales[0] : i < 2 * head_channels ? y[j] * scales[1] : y[j]);
    }
    block_barrier();
    const StepRow row = {.k = values + head_channels,
                         .q = values,
                         .v = thread < kStepColumns ? load<float>(values + 2 * head_channels + thread) : 0.0f,
                         .g = log_decay(alpha, a_neg, dt_bias),
                         .beta = sigmoid(beta)};
    step_slice(op, at, row, s, sums, thread, team_threads, is_active);
    if (first + n_teams < end) block_barrier();  // the slot is used again
  }
}

template <class Wait>
LB_DEVICE void delta_commit(const DeltaTask& p, int part, int n_parts, Wait&& wait) {
  const CausalConv& op = p.conv;
  const int step = n_parts * n_threads();
  wait();
  for (int c = part * n_threads() + thread_id(); c < op.channels; c += step) {
    ConvChannel channel;
    channel.read_older(op, c);
    channel.inputs[0] = op.x[c];
    channel.write(op, c);
  }
}

}  // namespace lb::gpu
