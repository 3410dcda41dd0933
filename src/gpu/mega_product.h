// A product's part: x is made from what precedes it by every block anew, which costs less than a phase of its own.
#pragma once

#include "activation.h"
#include "launch/megakernel_shape.h"
#include "round_run.h"
#include "vec_formats.h"
#include "weight_stream.h"

namespace lb::gpu {

// The norm weights that a thread needs first: they come from memory, what they meet from L2.
LB_DEVICE f32x4 first_weights(const ProductTask& p) {
  f32x4 w = {};
  if (p.from == XFrom::kRms && 4 * thread_id() < p.op.n_in) w = load_cached<f32x4>(p.w + 4 * thread_id());
  if (p.from == XFrom::kGatedRms && 4 * lane() < p.op.n_in / p.heads) w = load_cached<f32x4>(p.w + 4 * lane());
  return w;
}

// x as fp32, in shared memory. Ends with a barrier.
LB_DEVICE void stage_x(const ProductTask& p, const f32x4& first_w, float* x, float* scratch) {
  const int n = p.op.n_in;
  if (p.from == XFrom::kRms) {
    const int mine = 4 * thread_id();
    float sum = 0;
    LB_UNROLL_BY(1)
    for (int i = mine; i < n; i += 4 * n_threads()) {
      const f32x4 v = load<f32x4>(p.a + i);
      LB_UNROLL
      for (int j = 0; j < 4; ++j) sum += v[j] * v[j];
    }
    const float scale = rsqrt_fast(block_sum(sum, scratch) / float(n) + p.eps);
    LB_UNROLL_BY(1)
    for (int i = mine; i < n; i += 4 * n_threads()) {
      f32x4 v = load<f32x4>(p.a + i);
      const f32x4 w = i == mine ? first_w : load_cached<f32x4>(p.w + i);
      LB_UNROLL
      for (int j = 0; j < 4; ++j) v[j] = v[j] * scale * w[j];
      store(x + i, v);
    }
  } else if (p.from == XFrom::kGatedRms) {
    const int dim = n / p.heads;
    LB_UNROLL_BY(1)
    for (int head = warp(); head < p.heads; head += n_warps()) {
      const float* o = p.a + head * dim;
      float sum = 0;
      LB_UNROLL_BY(1)
      for (int i = 4 * lane(); i < dim; i += 128) {
        const f32x4 v = load<f32x4>(o + i);
        LB_UNROLL
        for (int j = 0; j < 4; ++j) sum += v[j] * v[j];
      }
      const float scale = rsqrt_fast(warp_sum(sum) / float(dim) + p.eps);
      LB_UNROLL_BY(1)
      for (int i = 4 * lane(); i < dim; i += 128) {
        f32x4 v = load<f32x4>(o + i);
        const f32x4 w = i == 4 * lane() ? first_w : load_cached<f32x4>(p.w + i), z = load<f32x4>(p.b + head * dim + i);
        LB_UNROLL
        for (int j = 0; j < 4; ++j) v[j] = v[j] * scale * w[j] * silu(z[j]);
        store(x + head * dim + i, v);
      }
    }
  } else {
    const float* from = p.from == XFrom::kPlain ? p.op.x : p.a;
    LB_UNROLL_BY(1)
    for (int i = 4 * thread_id(); i < n; i += 4 * n_threads()) {
      f32x4 v = load<f32x4>(from + i);
      if (p.from == XFrom::kSwiGlu) {
        const f32x4 up = load<f32x4>(p.b + i);
        LB_UNROLL
        for (int j = 0; j < 4; ++j) v[j] = silu(v[j]) * up[j];
      }
      store(x + i, v);
    }
  }
  block_barrier();
}

// Ends with a barrier.
LB_DEVICE void round_x(const float* x, int n_in, const RoundedRows& rounded) {
  LB_UNROLL_BY(1)
  for (int i = 4 * thread_id(); i - 4 * lane() < n_in; i += 4 * n_threads()) {  // in whole warps
    f32x4 v = {};
    if (i < n_in) v = load<f32x4>(x + i);
    round_four(rounded, i, v, i < n_in);
  }
  block_barrier();
}

template <DType kType, int kValues, class Entry>
LB_DEVICE constexpr int piece_sharers(int plane) {  // neighbouring pieces that have an entry of a plane in common
  const quant::PlaneFormat format = quant::plane_format(kType);
  return format.block_values < kValues ? 1
                                       : format.block_values / kValues * int(sizeof(Entry)) / format.part_bytes[plane];
}

inline constexpr int kPassRows = 256;  // of a block whose sums wait in shared memory at a time

// How a block's threads share rows.
struct Teams {
  int row_threads, n_teams;
  int team, column;  // of this thread; team n_teams: none, for those that are left over
};

// A thread's piece in each plane of a unit, from the start of dynamic shared memory and the unit's place in it.
template <class Format>
struct RingRows {
  static constexpr int kPlanes = quant::plane_format(Format::kType).n_planes;
  int at[kPlanes];

  LB_DEVICE RingRows(const StreamStep& step, int n_in, const Teams& teams) {
    const quant::PlaneLayout layout = quant::plane_layout(Format::kType, 0, n_in);
    LB_UNROLL
    for (int i = 0; i < kPlanes; ++i) {
      at[i] = plane_at(step, i) + skew(step, i) + teams.team * int(layout.row_bytes[i]);
    }
  }

  LB_DEVICE typename Format::Piece read(int unit_at, int piece) const {
    typename Format::Piece result;
    read_entries<0>(result, unit_at, piece);
    return result;
  }

 private:
  template <int kPlane, class Entry>
  LB_DEVICE void read_entry(Entry& entry, int unit_at, int piece) const {
    constexpr int kSharers = piece_sharers<Format::kType, Format::kValues, Entry>(kPlane);
    entry = load<Entry>(dynamic_shared<unsigned char>() + unit_at + at[kPlane] + piece / kSharers * int(sizeof(Entry)));
  }
  template <int kPlane>
  LB_DEVICE void read_entries(u32x4& piece, int unit_at, int index) const {
    read_entry<kPlane>(piece, unit_at, index);
  }
  template <int kPlane, class First, class... Rest>
  LB_DEVICE void read_entries(Parts<First, Rest...>& piece, int unit_at, int index) const {
    read_entry<kPlane>(piece.first, unit_at, index);
    if constexpr (sizeof...(Rest) > 0) read_entries<kPlane + 1>(piece.rest, unit_at, index);
  }
};

// Of a piece of staged x.
template <class Format>
LB_DEVICE void read_x(typename Format::X& x, const LinearVec& vec, int piece) {
  if constexpr (quant::plane_format(Format::kType).block_values > 1) {
    x.read(vec, 0, piece);
  } else {
    LB_UNROLL
    for (int i = 0; i < Format::kValues; i += 4) {
      const f32x4 v = load<f32x4>(vec.group.products[0].x + piece * Format::kValues + i);
      LB_UNROLL
      for (int j = 0; j < 4; ++j) x.x[i + j] = v[j];
    }
  }
}

// Sums four values over the warp, each in the order of linear_vec.h; lane l gets that of v[l / 8].
LB_DEVICE float sum_four(const float (&v)[4]) {
  const bool is_upper = lane() & 16, is_odd = lane() & 8;
  const float a = (is_upper ? v[2] : v[0]) + shuffle_xor(is_upper ? v[0] : v[2], 16);
  const float b = (is_upper ? v[3] : v[1]) + shuffle_xor(is_upper ? v[1] : v[3], 16);
  float sum = (is_odd ? b : a) + shuffle_xor(is_odd ? a : b, 8);
  sum += shuffle_xor(sum, 4);
  sum += shuffle_xor(sum, 2);
  return sum + shuffle_xor(sum, 1);
}

// pool: product_pool_bytes(n_in). A row is shared by row_threads threads, each with the x of its own pieces, as in
// linear_vec.h, and sums are added in the same order; a team has a slot's units at once, of each a row. Where a slot
// has fewer, the other sums are anything, and nobody reads them. Little code: most of it runs once a phase, and
// instructions have to be read too.
template <class Format, class Wait>
LB_APART void product(const ProductTask& p, int part, WeightStream& stream, float* sums, unsigned char* pool,
                      Wait wait) {
  constexpr bool kIsRounded = quant::plane_format(Format::kType).block_values > 1;
  float* staged = reinterpret_cast<float*>(pool);
  LinearVec vec = {};
  vec.group.products[0].x = staged;
  vec.group.products[0].n_in = p.op.n_in;
  if constexpr (kIsRounded) vec.x = rounded_rows(pool + (size_t(p.op.n_in) * 4 + 15) / 16 * 16, 1, p.op.n_in, false);
  // No division: it would take longer than the whole wait.
  const int team = int(uint32_t(thread_id()) * p.team_step >> 20), n_teams = p.n_teams, row_threads = p.row_threads;
  const Teams teams = {row_threads, n_teams, team, thread_id() - team * row_threads};
  const bool is_member = team < n_teams;
  const int begin = part * p.rows_each + min(part, p.more), n_rows = p.rows_each + (part < p.more ? 1 : 0);
  const int n_pieces = (p.op.n_in + Format::kValues - 1) / Format::kValues, row_warps = row_threads / 32;
  const bool is_long = n_pieces > row_threads;
  const StreamStep& step = stream.steps[stream.step];
  const RingRows<Format> rows(step, p.op.n_in, teams);
  const int unit_stride = int(step.unit_stride), n_slots = stream.n_slots;
  RingPlace place = stream.place;

  const f32x4 first_w = first_weights(p);
  wait();
  stage_x(p, first_w, staged, sums);
  if constexpr (kIsRounded) round_x(staged, p.op.n_in, vec.x);
  typename Format::X x = {};
  if (is_member && teams.column < n_pieces) read_x<Format>(x, vec, teams.column);

  const int slot_rows = kSlotUnits * n_teams, pass_rows = kPassRows / slot_rows * slot_rows;
  LB_UNROLL_BY(1)
  for (int pass = 0; pass < n_rows; pass += pass_rows) {  // sums: [pass_rows, row_warps]
    const int pass_end = min(pass + pass_rows, n_rows), own = pass + thread_id();
    float y = 0;
    if (own < pass_end && p.op.add != nullptr) y = p.op.add[begin + own];
    LB_UNROLL_BY(1)
    for (int first = pass; first < pass_end; first += slot_rows) {
      CountedBarrier* full = stream.full + place.slot * kSlotUnits;
      LB_UNROLL_BY(1)
      for (int row = first; row < min(first + slot_rows, n_rows); row += n_teams) barrier_wait(full++, place.parity);
      const int slot_at = stream.slots_at + place.slot * stream.slot_bytes;
      float total[kSlotUnits] = {};
      LB_UNROLL_BY(1)
      for (int ahead = 0; ahead < n_pieces && is_member; ahead += row_threads) {
        const int piece = teams.column + ahead, there = min(piece, n_pieces - 1);
        if (is_long) x = {};
        if (is_long && piece < n_pieces) read_x<Format>(x, vec, piece);
        typename Format::Piece pieces[kSlotUnits];
        LB_UNROLL
        for (int i = 0; i < kSlotUnits; ++i) pieces[i] = rows.read(slot_at + i * unit_stride, there);
        LB_UNROLL
        for (int i = 0; i < kSlotUnits; ++i) total[i] += Format::dot(pieces[i], x, there);
      }
      warp_barrier();
      if (lane() == 0) barrier_arrive(stream.empty + place.slot);
      place.advance(n_slots);
      const float sum = sum_four(total);
      if (lane() % 8 == 0 && is_member)
        sums[(first - pass + lane() / 8 * n_teams + team) * row_warps + teams.column / 32] = sum;
    }
    block_barrier();
    if (own < pass_end) {
      float sum = 0;
      LB_UNROLL_BY(1)
      for (int warp = 0; warp < row_warps; ++warp) sum += sums[thread_id() * row_warps + warp];
      p.op.y[begin + own] = y + sum;
    }
    if (pass_end < n_rows) block_barrier();  // the sums are read before the next pass writes them
  }
  if (thread_id() == 0) {
    stream.place = place;
    stream.step = stream.step + 1 == stream.n_steps ? 0 : stream.step + 1;
  }
}

}  // namespace lb::gpu
