// One row of a recurrent layer (equations in ops/delta_net.h), in two tasks.
//
// The step. A team of warps holds a slice of 16 columns of one value head's S in registers, or two adjacent slices;
// each warp holds 32 rows of S. Each warp convolves the 32 channels of k and of q that multiply its rows. Everything
// older than the row (S, the previous row, the convolution's earlier inputs, taps) is loaded before the projections
// arrive. These loads speculate that the previous append was one accepted row. Otherwise the block folds the previous
// append and loads again. After the wait there is one read, sums within warps, and one block barrier: the sums, not k
// and q, are scaled to unit length. One warp then finishes the columns of its unit: it gates them and writes their sum
// of squares, from which readers compute the factor of the head's norm.
//
// The commit, one phase later, overwrites the convolution's state once no block reads the old values.
//
// Code that runs once per phase costs time per instruction. Therefore dimensions are multiples of what a warp handles,
// the host does the divisions, and warps without a slice only join the barriers.
#pragma once

#include "gpu/activation.h"
#include "gpu/delta_net/gated_delta.h"
#include "gpu/delta_net/gates.h"
#include "gpu/megakernel/codes.h"
#include "gpu/megakernel/mailbox.h"
#include "gpu/megakernel/shape.h"
#include "gpu/warp_sums.h"

namespace lb::gpu {

inline constexpr int kStepLanes = kStepColumns / 4;    // lanes per row of S
inline constexpr int kStepRowLanes = 32 / kStepLanes;  // rows of S that a warp reads together
inline constexpr int kOlder = kMegaTaps - 1;           // earlier inputs of the convolution
inline constexpr int kStepLengths = 4 * kStepColumns;  // offset of the lengths in a warp's sums
static_assert(kStepRowLanes * kSliceRows == 32, "a warp has as many rows of S as lanes");
static_assert(kStepLengths + 4 == kStepSums);

// A thread's slice, its row of S, and its channels of the convolution.
struct StepSlice {
  Slice at;
  int row, q, k, v;  // row of S; channels (q and k are that row's channels)
  bool finishes;     // the warp finishes the columns of its unit
  int n_columns;     // columns of a unit
  int column;        // column of o that the lane finishes; lanes from n_columns on repeat

  LB_DEVICE StepSlice(const DeltaTask& p, int slice) {
    const GatedDelta& op = p.step;
    const int of_team = warp() & ((1 << p.team_shift) - 1), keys = op.n_k_heads * op.dk;
    row = of_team * 32 + lane();
    finishes = of_team == 0 && (slice & ((1 << p.unit_shift) - 1)) == 0;
    n_columns = kStepColumns << p.unit_shift;
    column = (slice >> p.unit_shift) * n_columns + (lane() & (n_columns - 1));
    at.v_head = quotient(slice, p.head_slices_step);
    at.k_head = quotient(at.v_head, p.key_heads_step);
    if (op.order == HeadOrder::kTiled) at.k_head = at.v_head - at.k_head * op.n_k_heads;
    at.first_column = slice * kStepColumns - at.v_head * op.dv;
    at.column = at.first_column + lane() % kStepLanes * 4;
    at.row_lane = of_team * 32 + lane() / kStepLanes;
    at.n_row_lanes = kStepRowLanes;
    at.is_inside = true;
    q = at.k_head * op.dk + row;
    k = keys + q;
    v = 2 * keys + column;
  }
  // Address of the thread's first value in S.
  LB_DEVICE float* state(const GatedDelta& op) const {
    return op.S + (at.v_head * op.dk + at.row_lane) * op.dv + at.column;
  }
};

// The convolution's input at d + 1 rows before this row. The nearest inputs are the accepted rows of the previous
// append.
LB_DEVICE const float* older_input(const CausalConv& op, int d, const TokenNumbers& numbers) {
  const int from = kOlder - 1 - d + numbers.n_accepted;  // index in [history, accepted rows]
  if (from < kOlder) return op.history + from * op.channels;
  const int row = from == kOlder ? numbers.first_accepted : op.accepted.path[from - kOlder];
  return op.pending + row * op.channels;
}

// A thread's channel of the convolution.
struct StepChannel {
  f32x4 taps;  // oldest first
  float older[kOlder];

  LB_DEVICE void read(const CausalConv& op, int c) {
    taps = load<f32x4>(op.w + c * kMegaTaps);
    older[0] = op.pending[c];
    LB_UNROLL
    for (int d = 1; d < kOlder; ++d) older[d] = op.history[(kOlder - d) * op.channels + c];
  }
  LB_DEVICE float convolved(float x) const {
    float sum = 0;
    LB_UNROLL
    for (int d = kOlder - 1; d >= 0; --d) sum = fma(taps[kOlder - 1 - d], older[d], sum);
    return silu(fma(taps[kOlder], x, sum));
  }
};

// Folds any number of accepted rows into the team's slices of S in memory, and writes the earlier inputs of the
// thread's channels to older: [3, kOlder]. Every thread of the block must call it.
LB_NOINLINE_NESTED void fold_any(const DeltaTask& p, int slice, bool is_active, Path* path, float* older) {
  const GatedDelta& op = p.step;
  StepSlice place(p, slice);
  const TokenNumbers& numbers = mega_state().numbers;
  const int n = numbers.n_accepted;
  LB_UNROLL_BY(1)
  for (int d = 0; d < kOlder; ++d) {
    const float* from = older_input(p.conv, d, numbers);
    store(older + d, from[place.q]);
    store(older + kOlder + d, from[place.k]);
    if (place.finishes) store(older + 2 * kOlder + d, from[place.v]);
  }
  const Fold fold = read_path(op, place.at.v_head, n, path, place.row, 32 << p.team_shift);
  if (n == 0 || !is_active) return;
  LB_UNROLL_BY(1)
  for (int i = 0; i < p.team_slices; ++i) {
    StateRows<1> s;
    read_state(op, place.at, place.at.row_lane, s);
    fold_path<1>(op, place.at, fold, path, place.at.row_lane, s);
    write_state(op, place.at, place.at.row_lane, s);
    place.at.column += kStepColumns;
  }
}

// Values that a thread loads for a row before the row's projections arrive.
template <int kSlices>
struct RowPrefetch {
  StateRows<kSlices> s;
  f32x4 delta[kSlices];
  float key, last, a_neg, dt_bias, norm_w;  // key: k in the channel of the lane's row of S
  StepChannel q, k, v;

  LB_DEVICE void read(const DeltaTask& p, const StepSlice& place, const float* state, int state_step, int buffer) {
    const GatedDelta& op = p.step;
    const Slice& at = place.at;
    LB_UNROLL
    for (int j = 0; j < kSlices; ++j) {
      LB_UNROLL
      for (int i = 0; i < kSliceRows; ++i) s[j][i] = load<f32x4>(state + j * kStepColumns + i * state_step);
      delta[j] = load<f32x4>(op.delta + at.v_head * op.dv + at.column + j * kStepColumns);
    }
    key = keys_in(op, buffer)[at.k_head * op.dk + place.row];
    last = cs_in(op, buffer)[at.v_head];
    q.read(p.conv, place.q);
    k.read(p.conv, place.k);
    if (!place.finishes) return;
    v.read(p.conv, place.v);
    a_neg = p.prepare.a_neg[at.v_head];
    dt_bias = p.prepare.dt_bias[at.v_head];
    norm_w = p.norm_w[place.column - at.v_head * op.dv];
  }
};

// The slices of S of a block, and how many its teams process together.
struct BlockSlices {
  int begin, end, at_once;

  LB_DEVICE BlockSlices(const DeltaTask& p, int part)
      : begin(part * p.slices_each + (min(part, p.more) << p.unit_shift)),
        end(begin + p.slices_each + (part < p.more ? 1 << p.unit_shift : 0)),
        at_once((n_warps() >> p.team_shift) * p.team_slices) {}
};

// Prefetches to L1 the S that the block's step will load, 32 bytes per lane. Called by a warp with time to spare.
LB_DEVICE void prefetch_state(const DeltaTask& p, int part) {
  const GatedDelta& op = p.step;
  const BlockSlices slices(p, part);
  LB_UNROLL_BY(1)
  for (int slice = slices.begin; slice < min(slices.end, slices.begin + slices.at_once); ++slice) {
    const Slice at = StepSlice(p, slice).at;
    constexpr int kLooks = kStepColumns / 8, kRows = 32 / kLooks;
    const float* from = op.S + (at.v_head * op.dk + lane() / kLooks) * op.dv + at.first_column + lane() % kLooks * 8;
    LB_UNROLL_BY(4)
    for (int d = 0; d < op.dk; d += kRows) {
      prefetch(from);
      from += kRows * op.dv;
    }
  }
}

// Finishes a unit of o, as one warp: y = o * gate, one value per lane; lanes beyond the unit repeat its values.
// squares_to: in one lane, the mailbox for the sum of o's squares.
LB_DEVICE void finish_unit(const Destination& to, Mailbox* squares_to, bool is_rounded, float o, float y,
                           uint32_t tag) {
  float squares = o * o;
  const auto add = [&](int mask) { squares += shuffle_xor(squares, mask); };
  if (is_rounded) {
    write_codes(to, y, tag, add);
  } else {
    write_value(to, y, tag);
    LB_UNROLL
    for (int mask = 1; mask < kStepColumns; mask *= 2) add(mask);
  }
  if (squares_to != nullptr) store_relaxed(squares_to, mailbox_of(squares, tag));
}

// kSlices: team_slices.
template <int kSlices>
LB_NOINLINE void delta_step_by(const DeltaTask& p, int part, float* pool, PhaseWait wait) {
  assume_shared(&p);
  const GatedDelta& op = p.step;
  const auto [begin, end, at_once] = BlockSlices(p, part);
  const int team = warp() >> p.team_shift;
  if (begin == end) wait.mark_ready();

  LB_UNROLL_BY(1)
  for (int first = begin; first < end; first += at_once) {
    const bool is_active = first + team * kSlices < end;
    const int slice = min(first + team * kSlices, end - kSlices);
    StepSlice place(p, slice);
    const Slice& at = place.at;
    float* state = place.state(op);
    const int state_step = kStepRowLanes * op.dv;
    RowPrefetch<kSlices> before;
    float* older = pool + n_warps() * kStepSums + thread_id() * 3 * kOlder;
    const TokenNumbers& numbers = mega_state().numbers;
    const int buffer = buffer_after(op, numbers.key_buffer, 0);
    const bool follows_one = numbers.n_accepted == 1 && numbers.first_accepted == 0;
    bool is_folded = false;
    LB_UNROLL_BY(1)
    for (;;) {  // issues all loads before the first use
      before = {};
      if (is_active) before.read(p, place, state, state_step, buffer);
      if (follows_one || is_folded) break;
      fold_any(p, slice, is_active,
               reinterpret_cast<Path*>(pool + n_warps() * kStepSums + n_threads() * 3 * kOlder) + team, older);
      is_folded = true;
      place = StepSlice(p, opaque(slice));  // recomputed, not kept in registers
      state = place.state(op);
    }
    // All warps load what only the finishing warp needs: the loads belong to one phase, and the others wait for that
    // warp anyway.
    const Mailbox *mailboxes = mega_state().mailboxes, *x = mailboxes + p.x_mailbox.at;
    const Mailbox* const from[6] = {x + mailbox_index(place.q),
                                    x + mailbox_index(place.k),
                                    x + mailbox_index(place.v),
                                    mailboxes + p.g_mailbox.at + mailbox_index(at.v_head),
                                    mailboxes + p.beta_mailbox.at + mailbox_index(at.v_head),
                                    mailboxes + p.z_mailbox.at + mailbox_index(place.column)};
    Mailbox boxes[6] = {};
    if (kSlices == 1 && is_active) load_mailboxes(from, boxes);  // valid in a late block; two slices need the registers
    if (is_active && follows_one) {                              // fold_path for one row
      const float decay = exp_nonpositive(before.last);
      LB_UNROLL
      for (int i = 0; i < kSliceRows; ++i) {
        const float key = shuffle(before.key, lane() / kStepLanes + i * kStepRowLanes);
        LB_UNROLL
        for (int j = 0; j < kSlices; ++j) {
          f32x4& s = before.s[j][i];
          LB_UNROLL
          for (int c = 0; c < 4; ++c) s[c] = fma(key, before.delta[j][c], s[c] * decay);
          store(state + j * kStepColumns + i * state_step, s);
        }
      }
    } else if (is_active) {
      LB_UNROLL
      for (int d = 0; d < kOlder; ++d) {
        before.q.older[d] = load<float>(older + d);
        before.k.older[d] = load<float>(older + kOlder + d);
        if (place.finishes) before.v.older[d] = load<float>(older + 2 * kOlder + d);
      }
    }
    if (first == begin) wait();

    float* sums = pool + (team << p.team_shift) * kStepSums;  // [team warps, kStepSums]
    float k = 0, v = 0, g = 0, beta = 0, gate = 0, decay = 0;
    Destination to;
    Mailbox* squares_to = nullptr;
    if (is_active) {
      const uint32_t x_tag = wait.tag_of(p.x_mailbox);
      float in[6];
      if (kSlices > 1) load_mailboxes(from, boxes);
      await_mailboxes(
          wait, from,
          {x_tag, x_tag, x_tag, wait.tag_of(p.g_mailbox), wait.tag_of(p.beta_mailbox), wait.tag_of(p.z_mailbox)}, boxes,
          in);
      const float q = before.q.convolved(in[0]);
      k = before.k.convolved(in[1]);
      float products[kSlices][8] = {};  // S^T k of four columns, then S^T q of them
      LB_UNROLL
      for (int i = 0; i < kSliceRows; ++i) {
        const int of_row = lane() / kStepLanes + i * kStepRowLanes;
        const float key = shuffle(k, of_row), query = shuffle(q, of_row);
        LB_UNROLL
        for (int j = 0; j < kSlices; ++j) LB_UNROLL
        for (int c = 0; c < 4; ++c) {
          products[j][c] = fma(key, before.s[j][i][c], products[j][c]);
          products[j][4 + c] = fma(query, before.s[j][i][c], products[j][4 + c]);
        }
      }
      LB_UNROLL
      for (int j = 0; j < kSlices; ++j) reduce_scatter(products[j]);
      float lengths[4] = {k * k, q * q, k * q, 0};
      const float length = warp_sums(lengths);
      float* own = sums + place.row / 32 * kStepSums;
      const int value = lane() / kStepLanes;  // index of the sum that this lane holds
      LB_UNROLL
      for (int j = 0; j < kSlices; ++j)
        store(own + (2 * j + value / 4) * kStepColumns + lane() % kStepLanes * 4 + value % 4, products[j][0]);
      if (lane() % 8 == 0) store(own + kStepLengths + lane() / 8, length);
      if (place.finishes) {
        v = before.v.convolved(in[2]);
        g = log_decay(in[3], before.a_neg, before.dt_bias);
        decay = exp_nonpositive(g);
        beta = sigmoid(in[4]);
        gate = silu(in[5]) * before.norm_w;
        if (p.unit_shift != 0 || lane() < kStepColumns)
          to = opaque(destination_in(mega_state().mailboxes + p.y_mailbox.at, op.n_v_heads * op.dv, place.column,
                                     p.unit_shift != 0));
        if (lane() == 0) squares_to = opaque(mega_state().mailboxes + (p.squares.at + (slice >> p.unit_shift)));
      }
    }
    block_barrier();
    if (first == begin && !wait.is_barrier) wait.mark_ready();
    if (is_active && (place.finishes || at.first_column == 0)) {
      // The sums of the lane's column: of the team's first slice or, in a unit of two slices, of the team's second
      // slice or of the next team.
      const int second = (lane() & (place.n_columns - 1)) / kStepColumns;
      const float* of_column = sums + (kSlices > 1 ? second * 2 * kStepColumns : (second << p.team_shift) * kStepSums);
      float k_state = 0, q_state = 0;
      f32x4 lengths = {};
      LB_UNROLL_BY(4)
      for (int w = 0; w < 1 << p.team_shift; ++w) {
        k_state += load<float>(of_column + w * kStepSums + lane() % kStepColumns);
        q_state += load<float>(of_column + w * kStepSums + kStepColumns + lane() % kStepColumns);
        const f32x4 of_warp = load<f32x4>(sums + w * kStepSums + kStepLengths);
        LB_UNROLL
        for (int c = 0; c < 3; ++c) lengths[c] += of_warp[c];
      }
      const float k_scale = rsqrt_fast(lengths[0] + p.prepare.eps);
      if (place.finishes) {
        const float q_scale = rsqrt_fast(lengths[1] + p.prepare.eps) * rsqrt_fast(float(op.dk));
        const float change = beta * (v - decay * (k_state * k_scale));
        const float o = q_scale * fma(lengths[2] * k_scale, change, decay * q_state);
        finish_unit(to, squares_to, p.unit_shift != 0, o, o * gate, wait.tag);
        if (lane() < place.n_columns) op.delta[place.column] = change;
      }
      if (at.first_column == 0) {
        if (place.row == 0) cs_in(op, 1 - buffer)[at.v_head] = g;
        // Value heads that share a key head write the same bits.
        keys_in(op, 1 - buffer)[at.k_head * op.dk + place.row] = k * k_scale;
      }
    }
    if (first + at_once < end) block_barrier();  // the next iteration overwrites the sums
  }
}

LB_DEVICE void delta_step(const DeltaTask& p, int part, float* pool, PhaseWait wait) {
  if (p.team_slices == 1) return delta_step_by<1>(p, part, pool, wait);
  delta_step_by<2>(p, part, pool, wait);
}

// Four channels per thread. Once every unit of o has sent its sum of squares, no block reads the overwritten values.
LB_NOINLINE void delta_commit(const DeltaTask& p, int part, int n_parts, PhaseWait wait) {
  assume_shared(&p);
  const CausalConv& op = p.conv;
  const int step = 4 * n_parts * n_threads();
  wait();
  LB_UNROLL_BY(1)
  for (int i = thread_id(); i < p.n_units; i += n_threads()) {
    float any[1];
    read_mailboxes<1>(wait, {mega_state().mailboxes + p.squares.at + i}, {wait.tag_of(p.squares)}, any);
  }
  block_barrier();
  if (!wait.is_barrier) wait.mark_ready();
  const TokenNumbers& numbers = mega_state().numbers;
  LB_UNROLL_BY(1)
  for (int c = 4 * (part * n_threads() + thread_id()); c < op.channels; c += step) {
    f32x4 x[1], older[kOlder];
    read_fours<1>(wait, p.x_mailbox, nullptr, {c}, x);
    LB_UNROLL
    for (int d = 0; d < kOlder; ++d) older[d] = load<f32x4>(older_input(op, d, numbers) + c);
    LB_UNROLL
    for (int d = 0; d < kOlder; ++d) store(op.history + (kOlder - 1 - d) * op.channels + c, older[d]);
    store(op.pending + c, x[0]);
  }
}

}  // namespace lb::gpu
