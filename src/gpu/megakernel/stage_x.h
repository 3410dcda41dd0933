// Stages x of a product: every block recomputes the whole x in shared memory, which costs less than a separate phase.
#pragma once

#include "gpu/activation.h"
#include "gpu/gemv/formats.h"
#include "gpu/megakernel/mailbox.h"
#include "gpu/megakernel/shape.h"
#include "gpu/round_block.h"

namespace lb::gpu {

inline constexpr int kHeadsAtOnce = 2;  // heads of a gated norm that a warp has in flight
// Groups of four values that a thread has in flight: in sequence, each would take a read's whole latency. Long rows
// have 20.
inline constexpr int kFoursAtOnce = 3;

// Staged x in shared memory, as fp32 or rounded to 8 bits.
template <bool kIsRounded>
struct StagedX {
  float* values;
  RoundedRows rounded;

  LB_DEVICE StagedX(unsigned char* at, int n_in) : values(reinterpret_cast<float*>(at)), rounded() {
    if constexpr (kIsRounded) rounded = rounded_rows(at, 1, n_in, false);
  }
  // Stores four values from `at` on. Called by whole warps.
  LB_DEVICE void put(int at, const f32x4& v, bool is_inside) const {
    if constexpr (kIsRounded) {
      round_to_codes(rounded, at, v, is_inside);
    } else if (is_inside) {
      store(values + at, v);
    }
  }
};

LB_DEVICE float add_squares(float sum, const f32x4& v) {
  LB_UNROLL
  for (int j = 0; j < 4; ++j) sum += v[j] * v[j];
  return sum;
}

// Stages a norm's x without the norm's factor. The factor needs all squares, so it multiplies the rows' sums instead.
// Returns the sum of squares of the thread's values. Norm weights are loaded here, because a caller's loads would have
// to complete before the call. A thread with one group of four loads them together with the mailboxes. With more groups
// it loads them afterwards, because registers do not suffice for both.
template <int kAtOnce, class X>
LB_DEVICE float stage_norm(const ProductTask& p, const X& to, const PhaseWait& wait) {
  const int n = p.op.n_in, step = 4 * n_threads();
  float sum = 0;
  LB_UNROLL_BY(1)
  for (int first = 4 * thread_id(); first - 4 * lane() < n; first += kAtOnce * step) {
    int at[kAtOnce];
    f32x4 v[kAtOnce], w[kAtOnce] = {};
    const auto load_weights = [&] {
      LB_UNROLL
      for (int k = 0; k < kAtOnce; ++k)
        if (at[k] >= 0) w[k] = load_cached<f32x4>(p.w + at[k]);
    };
    LB_UNROLL
    for (int k = 0; k < kAtOnce; ++k) at[k] = first + k * step < n ? first + k * step : -1;
    if (kAtOnce == 1) load_weights();
    read_fours(wait, p.a_mailbox, p.a, at, v);
    if (kAtOnce > 1) load_weights();
    LB_UNROLL
    for (int k = 0; k < kAtOnce; ++k) {
      if (first - 4 * lane() + k * step >= n) continue;  // uniform across the warp
      sum = add_squares(sum, v[k]);
      LB_UNROLL
      for (int j = 0; j < 4; ++j) v[k][j] *= w[k][j];
      to.put(at[k], v[k], at[k] >= 0);
    }
  }
  return sum;
}

// The factor of a head's norm, from the head's sum of squares.
LB_DEVICE float head_factor(const ProductTask& p, float squares) { return rsqrt_fast(squares * p.mean_of + p.eps); }

// One warp per head; a lane also loads one of the head's sums of squares.
template <class X>
LB_DEVICE void stage_heads(const ProductTask& p, const X& to, const PhaseWait& wait) {
  const int dim = p.head_dim;
  const uint32_t tag = wait.tag_of(p.a_mailbox);
  const Mailbox *values = PhaseWait::mailboxes_of(p.a_mailbox), *squares = PhaseWait::mailboxes_of(p.squares);
  LB_UNROLL_BY(1)
  for (int first = warp(); first < p.heads; first += kHeadsAtOnce * n_warps()) {
    Mailbox boxes[kHeadsAtOnce][5];
    poll_until_valid(wait, [&] {
      uint32_t differs = 0;
      LB_UNROLL
      for (int k = 0; k < kHeadsAtOnce; ++k) {
        const int head = first + k * n_warps();
        LB_UNROLL
        for (int j = 0; j < 5; ++j) boxes[k][j] = Mailbox(tag) << 32;
        if (head >= p.heads) continue;
        if (4 * lane() < dim) {
          const Mailbox* four = values + mailbox_index(head * dim + 4 * lane());
          load_relaxed(four, boxes[k][0], boxes[k][1]);
          load_relaxed(four + kHalfGroup, boxes[k][2], boxes[k][3]);
        }
        if (lane() < p.head_squares) boxes[k][4] = load_relaxed(squares + head * p.head_squares + lane());
      }
      LB_UNROLL
      for (int k = 0; k < kHeadsAtOnce; ++k) LB_UNROLL
      for (int j = 0; j < 5; ++j) differs |= uint32_t(boxes[k][j] >> 32) ^ tag;
      return differs;
    });
    LB_UNROLL
    for (int k = 0; k < kHeadsAtOnce; ++k) {
      const float factor = head_factor(p, warp_sum(value_in(boxes[k][4])));
      f32x4 v;
      LB_UNROLL
      for (int j = 0; j < 4; ++j) v[j] = value_in(boxes[k][j]) * factor;
      const int head = first + k * n_warps();
      to.put(head * dim + 4 * lane(), v, head < p.heads && 4 * lane() < dim);
    }
  }
}

template <int kAtOnce, class X>
LB_DEVICE void stage_values(const ProductTask& p, const X& to, const PhaseWait& wait) {
  const int n = p.op.n_in, step = 4 * n_threads();
  LB_UNROLL_BY(1)
  for (int first = 4 * thread_id(); first - 4 * lane() < n; first += kAtOnce * step) {
    int at[kAtOnce];
    LB_UNROLL
    for (int k = 0; k < kAtOnce; ++k) at[k] = first + k * step < n ? first + k * step : -1;
    f32x4 v[kAtOnce];
    read_fours(wait, p.a_mailbox, p.a, at, v);
    LB_UNROLL
    for (int k = 0; k < kAtOnce; ++k)
      if (first - 4 * lane() + k * step < n) to.put(at[k], v[k], at[k] >= 0);
  }
}

// Stages codes and scales in the layout of RoundedRows. The factor of a head's norm multiplies the head's scales, so a
// thread also handles some scales besides its codes.
inline constexpr int kMaxHeadScales = 4;  // scales of a head of up to 128 values
template <bool kIsOfHeads>
LB_DEVICE void stage_codes(const ProductTask& p, const RoundedRows& to, const PhaseWait& wait) {
  constexpr int kAtOnce = 2;
  const int n_scales = p.op.n_in / kRoundBlock, n = p.op.n_in / 4 + (kIsOfHeads ? 0 : n_scales), step = 2 * n_threads();
  const uint32_t tag = wait.tag_of(p.a_mailbox);
  const Mailbox* from = PhaseWait::mailboxes_of(p.a_mailbox);
  int i_scale = thread_id();
  LB_UNROLL_BY(1)
  for (int first = 2 * thread_id(); first < n; first += kAtOnce * step) {
    Mailbox boxes[kAtOnce][2];
    float scale = 0, squares = 0;
    poll_until_valid(wait, [&] {
      uint32_t differs = 0;
      LB_UNROLL
      for (int k = 0; k < kAtOnce; ++k) {
        boxes[k][0] = boxes[k][1] = Mailbox(tag) << 32;
        if (first + k * step < n) load_relaxed(from + first + k * step, boxes[k][0], boxes[k][1]);
      }
      if (kIsOfHeads && i_scale < n_scales) {
        Mailbox of_scale[1 + kMaxHeadScales];
        const Mailbox* squares_from =
            PhaseWait::mailboxes_of(p.squares) + quotient(i_scale, p.head_scales_step) * p.head_squares;
        of_scale[0] = load_relaxed(from + n + i_scale);
        LB_UNROLL
        for (int i = 0; i < kMaxHeadScales; ++i)
          of_scale[1 + i] = i < p.head_squares ? load_relaxed(squares_from + i) : Mailbox(tag) << 32;
        squares = 0;
        LB_UNROLL
        for (int i = 0; i < kMaxHeadScales; ++i) squares += value_in(of_scale[1 + i]);
        scale = value_in(of_scale[0]);
        LB_UNROLL
        for (int i = 0; i <= kMaxHeadScales; ++i) differs |= uint32_t(of_scale[i] >> 32) ^ tag;
      }
      LB_UNROLL
      for (int k = 0; k < kAtOnce; ++k) differs |= (boxes[k][0] >> 32 ^ tag) | (boxes[k][1] >> 32 ^ tag);
      return differs;
    });
    LB_UNROLL
    for (int k = 0; k < kAtOnce; ++k)
      if (first + k * step < n)
        store(to.high + 4 * (first + k * step), u32x2{uint32_t(boxes[k][0]), uint32_t(boxes[k][1])});
    if (kIsOfHeads && i_scale < n_scales) to.scale[i_scale] = scale * head_factor(p, squares);
    i_scale += n_threads();
  }
}

// Stages x, for a norm without its factor. Returns the thread's sum of squares for a norm, else 0.
template <bool kIsRounded>
LB_NOINLINE_NESTED float stage_x(const ProductTask& p, unsigned char* at, PhaseWait wait) {
  const StagedX<kIsRounded> to(at, p.op.n_in);
  switch (p.from) {
    case XFrom::kRms:
      return p.op.n_in > 4 * n_threads() ? stage_norm<kFoursAtOnce>(p, to, wait) : stage_norm<1>(p, to, wait);
    case XFrom::kHeads: stage_heads(p, to, wait); break;
    case XFrom::kCodes: stage_codes<false>(p, to.rounded, wait); break;
    case XFrom::kHeadsCodes: stage_codes<true>(p, to.rounded, wait); break;
    default: stage_values<kIsRounded ? kFoursAtOnce : 4>(p, to, wait);
  }
  return 0;
}

// Reads a thread's piece of staged x.
template <class Format, bool kIsRounded>
LB_DEVICE void read_x(typename Format::X& x, const StagedX<kIsRounded>& staged, int piece) {
  if constexpr (kIsRounded) {
    Gemv gemv = {};
    gemv.x = staged.rounded;
    x.read(gemv, 0, piece);
    if constexpr (Format::kValues == 32) {  // types with offsets; a piece is the 32 values of one scale
      int sum = 0;
      LB_UNROLL
      for (int i = 0; i < Format::kValues / 4; ++i) sum = dot4(x.high[i], 0x01010101, sum);
      x.sum = staged.rounded.scale[piece] * float(sum);
    }
  } else {
    LB_UNROLL
    for (int i = 0; i < Format::kValues; i += 4) {
      const f32x4 v = load<f32x4>(staged.values + piece * Format::kValues + i);
      LB_UNROLL
      for (int j = 0; j < 4; ++j) x.x[i + j] = v[j];
    }
  }
}

}  // namespace lb::gpu
