// A product's part: x is made from what precedes it by every block anew, which costs less than a phase of its own.
#pragma once

#include "activation.h"
#include "launch/megakernel_shape.h"
#include "round_run.h"
#include "sum_eight.h"
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
    for (int i = mine; i < n; i += 4 * n_threads()) {
      const f32x4 v = load<f32x4>(p.a + i);
      LB_UNROLL
      for (int j = 0; j < 4; ++j) sum += v[j] * v[j];
    }
    const float scale = rsqrt_fast(block_sum(sum, scratch) / float(n) + p.eps);
    for (int i = mine; i < n; i += 4 * n_threads()) {
      f32x4 v = load<f32x4>(p.a + i);
      const f32x4 w = i == mine ? first_w : load_cached<f32x4>(p.w + i);
      LB_UNROLL
      for (int j = 0; j < 4; ++j) v[j] = v[j] * scale * w[j];
      store(x + i, v);
    }
  } else if (p.from == XFrom::kGatedRms) {
    const int dim = n / p.heads;
    for (int head = warp(); head < p.heads; head += n_warps()) {
      const float* o = p.a + head * dim;
      float sum = 0;
      for (int i = 4 * lane(); i < dim; i += 128) {
        const f32x4 v = load<f32x4>(o + i);
        LB_UNROLL
        for (int j = 0; j < 4; ++j) sum += v[j] * v[j];
      }
      const float scale = rsqrt_fast(warp_sum(sum) / float(dim) + p.eps);
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
  return format.block_values < kValues ? 1 : format.block_values / kValues * int(sizeof(Entry)) / format.part_bytes[plane];
}

inline constexpr int kPassRows = 256;  // of a block whose sums wait in shared memory at a time

// How a block's threads share rows.
struct Teams {
  int row_threads, n_teams;
  int team, column;  // of this thread; team n_teams: none, for those that are left over
};

// A thread's piece in each plane of a slot: where it lies in a team's first row of a unit, and where in its next.
template <class Format>
struct RingRows {
  static constexpr int kPlanes = quant::plane_format(Format::kType).n_planes;
  int at[kPlanes], row_step[kPlanes];

  LB_DEVICE RingRows(const StreamStep& step, int n_in, const Teams& teams) {
    const quant::PlaneLayout layout = quant::plane_layout(Format::kType, 0, n_in);
    LB_UNROLL
    for (int i = 0; i < kPlanes; ++i) {
      const int row_bytes = int(layout.row_bytes[i]);
      at[i] = plane_at(step, i) + skew(step, i) + teams.team * row_bytes;
      row_step[i] = teams.n_teams * row_bytes;
    }
  }

  // offset: of the slot in dynamic shared memory.
  LB_DEVICE typename Format::Piece read(int offset, int row, int piece) const {
    typename Format::Piece result;
    read_entries<0>(result, offset, row, piece);
    return result;
  }

 private:
  template <int kPlane, class Entry>
  LB_DEVICE void read_entry(Entry& entry, int offset, int row, int piece) const {
    constexpr int kSharers = piece_sharers<Format::kType, Format::kValues, Entry>(kPlane);
    entry = load<Entry>(dynamic_shared<unsigned char>() + offset + at[kPlane] + row * row_step[kPlane] + piece / kSharers * int(sizeof(Entry)));
  }
  template <int kPlane>
  LB_DEVICE void read_entries(u32x4& piece, int offset, int row, int index) const {
    read_entry<kPlane>(piece, offset, row, index);
  }
  template <int kPlane, class First, class... Rest>
  LB_DEVICE void read_entries(Parts<First, Rest...>& piece, int offset, int row, int index) const {
    read_entry<kPlane>(piece.first, offset, row, index);
    if constexpr (sizeof...(Rest) > 0) read_entries<kPlane + 1>(piece.rest, offset, row, index);
  }
};

// pool: product_pool_bytes(n_in). A row is shared by row_threads threads, each with the x of its own pieces, as in
// linear_vec.h, and sums are added in the same order; a team has four rows at a time of the ring's units. Of rows that
// are not there the sum is anything, as nobody reads it.
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
  const int team = int(uint32_t(thread_id()) * p.team_step >> 20), n_teams = p.n_teams;
  const Teams teams = {p.row_threads, n_teams, team, thread_id() - team * p.row_threads};
  const bool is_member = team < n_teams;
  const int begin = part * p.rows_each + min(part, p.more), n_rows = p.rows_each + (part < p.more ? 1 : 0);
  const int n_pieces = (p.op.n_in + Format::kValues - 1) / Format::kValues, row_warps = p.row_threads / 32;
  const int last_in_unit = p.team_rows - 1, unit_rows = p.team_rows * n_teams;
  const RingRows<Format> rows(stream.steps[stream.step], p.op.n_in, teams);
  const int n_slots = stream.n_slots, slot_bytes = stream.slot_bytes, slots_at = stream.slots_at;
  RingPlace next = stream.place, behind = next;  // to read, to replace

  const f32x4 first_w = first_weights(p);
  wait();
  stage_x(p, first_w, staged, sums);
  if constexpr (kIsRounded) round_x(staged, p.op.n_in, vec.x);
  const bool is_long = n_pieces > p.row_threads;
  typename Format::X x;
  if (teams.column < n_pieces && is_member) x.read(vec, 0, teams.column);

  const int batch_rows = 8 * n_teams, pass_rows = kPassRows / batch_rows * batch_rows;  // sums: [pass_rows, row_warps]
  for (int pass = 0; pass < n_rows; pass += pass_rows) {
    const int pass_end = min(pass + pass_rows, n_rows), own = pass + thread_id();
    float y = 0;
    if (own < pass_end && p.op.add != nullptr) y = p.op.add[begin + own];
    for (int first = pass; first < pass_end; first += batch_rows) {
      float total[8] = {};
      LB_UNROLL
      for (int half = 0; half < 2; ++half) {
        const int half_first = first + half * 4 * n_teams, half_end = min(half_first + 4 * n_teams, n_rows);
        if (half_first >= n_rows) continue;  // all threads
        const uint32_t before = next.ordinal;
        const int first_slot = next.slot;
        for (int row = half_first; row < half_end; row += unit_rows) {
          barrier_wait(stream.full + next.slot, next.parity);
          stream.advance(next);
        }
        int offsets[4], slot = first_slot;
        LB_UNROLL
        for (int i = 0; i < 4; ++i) {
          if (i > 0 && (i & last_in_unit) == 0) slot = slot + 1 == n_slots ? 0 : slot + 1;
          offsets[i] = slots_at + slot * slot_bytes;
        }
        for (int ahead = 0; ahead < n_pieces && is_member; ahead += p.row_threads) {
          const int piece = teams.column + ahead, read = min(piece, n_pieces - 1);
          if (is_long) x = {};
          if (is_long && piece < n_pieces) x.read(vec, 0, piece);
          typename Format::Piece pieces[4];
          LB_UNROLL
          for (int i = 0; i < 4; ++i) pieces[i] = rows.read(offsets[i], i & last_in_unit, read);
          LB_UNROLL
          for (int i = 0; i < 4; ++i) total[4 * half + i] += Format::dot(pieces[i], x, read);
        }
        warp_barrier();
        stream.give_back(first_slot, next.ordinal - before);
        stream.replace(behind, before);
      }
      const float sum = sum_eight(total);
      const int place = first - pass + lane() / 4 * n_teams + team;
      if (lane() % 4 == 0 && is_member) sums[place * row_warps + teams.column / 32] = sum;
    }
    block_barrier();
    if (own < pass_end) {
      float sum = 0;
      for (int warp = 0; warp < row_warps; ++warp) sum += sums[thread_id() * row_warps + warp];
      p.op.y[begin + own] = y + sum;
    }
    if (pass_end < n_rows) block_barrier();  // the sums are read before the next pass writes them
  }
  if (thread_id() == 0) {
    stream.place = next;
    stream.behind = behind;
    stream.step = stream.step + 1 == stream.n_steps ? 0 : stream.step + 1;
  }
}

}  // namespace lb::gpu
