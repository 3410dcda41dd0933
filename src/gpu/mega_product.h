// A product's part: x is made from what precedes it by every block anew, which costs less than a phase of its own.
#pragma once

#include "activation.h"
#include "launch/megakernel_shape.h"
#include "mega_wait.h"
#include "round_run.h"
#include "vec_formats.h"
#include "warp_sums.h"
#include "weight_stream.h"

namespace lb::gpu {

inline constexpr int kHeadsAtOnce = 2;  // of a warp, of a gated norm

// Norm weights, asked for before the wait, as they come from memory.
LB_DEVICE f32x4 first_weights(const ProductTask& p) {
  f32x4 w = {};
  if (p.from == XFrom::kRms && 4 * thread_id() < p.op.n_in) w = load_cached<f32x4>(p.w + 4 * thread_id());
  if (p.from == XFrom::kGatedRms && 4 * lane() < p.head_dim) w = load_cached<f32x4>(p.w + 4 * lane());
  return w;
}

LB_DEVICE float add_squares(float sum, const f32x4& v) {
  LB_UNROLL
  for (int j = 0; j < 4; ++j) sum += v[j] * v[j];
  return sum;
}

LB_DEVICE void stage_norm(const ProductTask& p, const f32x4& first_w, float* x, float* scratch, const PhaseWait& wait) {
  const int n = p.op.n_in, mine = 4 * thread_id(), step = 4 * n_threads();
  f32x4 first[1] = {}, more[1];
  read_fours<1>(wait, p.a_words, p.a, {mine < n ? mine : -1}, first);
  float sum = add_squares(0, first[0]);
  LB_UNROLL_BY(1)
  for (int i = mine + step; i < n; i += step) {
    read_fours<1>(wait, p.a_words, p.a, {i}, more);
    store(x + i, more[0]);
    sum = add_squares(sum, more[0]);
  }
  sum = warp_sum(sum);
  if (lane() == 0) scratch[warp()] = sum;
  block_barrier();
  const float scale = rsqrt_fast(warp_sum(lane() < n_warps() ? scratch[lane()] : 0.0f) / float(n) + p.eps);
  LB_UNROLL_BY(1)
  for (int i = mine; i < n; i += step) {
    f32x4 v = first[0];
    if (i != mine) v = load<f32x4>(x + i);
    const f32x4 w = i == mine ? first_w : load_cached<f32x4>(p.w + i);
    LB_UNROLL
    for (int j = 0; j < 4; ++j) v[j] = v[j] * scale * w[j];
    store(x + i, v);
  }
}

LB_DEVICE void stage_gated(const ProductTask& p, const f32x4& first_w, float* x, const PhaseWait& wait) {
  const int dim = p.head_dim;
  LB_UNROLL_BY(1)
  for (int first = warp(); first < p.heads; first += kHeadsAtOnce * n_warps()) {
    int heads[kHeadsAtOnce], at[kHeadsAtOnce];
    float sums[kHeadsAtOnce] = {};
    LB_UNROLL
    for (int k = 0; k < kHeadsAtOnce; ++k) {
      heads[k] = first + k * n_warps();
      at[k] = heads[k] < p.heads && 4 * lane() < dim ? heads[k] * dim + 4 * lane() : -1;
    }
    f32x4 gates[kHeadsAtOnce], v[kHeadsAtOnce];
    read_fours(wait, p.b_words, p.b, at, gates);  // made with what o is made of
    read_fours(wait, p.a_words, p.a, at, v);
    LB_UNROLL
    for (int k = 0; k < kHeadsAtOnce; ++k) {
      sums[k] = add_squares(0, v[k]);
      LB_UNROLL_BY(1)
      for (int i = 4 * lane() + 128; i < dim && heads[k] < p.heads; i += 128) {
        f32x4 more[1];
        read_fours<1>(wait, p.a_words, p.a, {heads[k] * dim + i}, more);
        store(x + heads[k] * dim + i, more[0]);
        sums[k] = add_squares(sums[k], more[0]);
      }
      sums[k] = warp_sum(sums[k]);
    }
    LB_UNROLL
    for (int k = 0; k < kHeadsAtOnce; ++k) {
      const float scale = rsqrt_fast(sums[k] / float(dim) + p.eps);
      const auto put = [&](int to, const f32x4& value, const f32x4& w, const f32x4& gate) {
        f32x4 y;
        LB_UNROLL
        for (int j = 0; j < 4; ++j) y[j] = value[j] * scale * w[j] * silu(gate[j]);
        store(x + to, y);
      };
      if (at[k] < 0) continue;
      put(at[k], v[k], first_w, gates[k]);
      LB_UNROLL_BY(1)
      for (int i = 4 * lane() + 128; i < dim; i += 128) {
        f32x4 more[1];
        read_fours<1>(wait, p.b_words, p.b, {heads[k] * dim + i}, more);
        put(heads[k] * dim + i, load<f32x4>(x + heads[k] * dim + i), load_cached<f32x4>(p.w + i), more[0]);
      }
    }
  }
}

LB_DEVICE void stage_values(const ProductTask& p, float* x, const PhaseWait& wait) {
  constexpr int kAtOnce = 4;
  const int n = p.op.n_in, step = 4 * n_threads();
  LB_UNROLL_BY(1)
  for (int first = 4 * thread_id(); first < n; first += kAtOnce * step) {
    int at[kAtOnce];
    LB_UNROLL
    for (int k = 0; k < kAtOnce; ++k) at[k] = first + k * step < n ? first + k * step : -1;
    f32x4 v[kAtOnce];
    read_fours(wait, p.a_words, p.a, at, v);
    LB_UNROLL
    for (int k = 0; k < kAtOnce; ++k)
      if (at[k] >= 0) store(x + at[k], v[k]);
  }
}

// x as fp32, in shared memory. Ends with a barrier.
LB_APART void stage_x(const ProductTask& p, f32x4 first_w, float* x, float* scratch, PhaseWait wait) {
  switch (p.from) {
    case XFrom::kRms: stage_norm(p, first_w, x, scratch, wait); break;
    case XFrom::kGatedRms: stage_gated(p, first_w, x, wait); break;
    default: stage_values(p, x, wait);
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

// Where a thread's rows of a batch are in each plane, from the batch's begin in the ring of weights on.
template <class Format>
struct RingRows {
  static constexpr int kPlanes = quant::plane_format(Format::kType).n_planes;
  static constexpr int kRows = most_batch_rows(quant::plane_format(Format::kType).block_values == 1);
  int ring_at, ring_bytes;
  int at[kRows][kPlanes];

  LB_DEVICE RingRows(const WeightStream& stream, const StreamStep& step, const ProductTask& p, int team)
      : ring_at(stream.ring_at), ring_bytes(stream.ring_bytes) {
    const quant::PlaneLayout layout = quant::plane_layout(Format::kType, 0, p.op.n_in);
    const int chunk_bytes = 16 * int(step.at[quant::kMaxPlanes]), in_chunk = (1 << p.chunk_shift) - 1;
    LB_UNROLL
    for (int i = 0; i < kRows; ++i) {
      const int row = min(i, p.batch_rows - 1);
      LB_UNROLL
      for (int k = 0; k < kPlanes; ++k)
        at[i][k] = (row >> p.chunk_shift) * chunk_bytes + 16 * int(step.at[k]) + int(step.skew[k]) +
                   ((row & in_chunk) * p.n_teams + team) * int(layout.row_bytes[k]);
    }
  }

  // Of the last batch, with rows_left from the thread's first on. What is not there is read as the first row is: behind
  // the last the ring may be written meanwhile.
  LB_DEVICE void keep(int rows_left, int n_teams) {
    LB_UNROLL
    for (int i = 1; i < kRows; ++i) LB_UNROLL
    for (int k = 0; k < kPlanes; ++k)
      if (i * n_teams >= rows_left) at[i][k] = at[0][k];
  }

  LB_DEVICE typename Format::Piece read(int batch_at, int row, int piece) const {
    typename Format::Piece result;
    read_entries<0>(result, batch_at, at[row], piece);
    return result;
  }

 private:
  template <int kPlane, class Entry>
  LB_DEVICE void read_entry(Entry& entry, int batch_at, const int (&in_batch)[kPlanes], int piece) const {
    constexpr int kSharers = piece_sharers<Format::kType, Format::kValues, Entry>(kPlane);
    int from = batch_at + in_batch[kPlane] + piece / kSharers * int(sizeof(Entry));
    if (from >= ring_bytes) from -= ring_bytes;
    entry = load<Entry>(dynamic_shared<unsigned char>() + ring_at + from);
  }
  template <int kPlane>
  LB_DEVICE void read_entries(u32x4& piece, int batch_at, const int (&in_batch)[kPlanes], int index) const {
    read_entry<kPlane>(piece, batch_at, in_batch, index);
  }
  template <int kPlane, class First, class... Rest>
  LB_DEVICE void read_entries(Parts<First, Rest...>& piece, int batch_at, const int (&in_batch)[kPlanes],
                              int index) const {
    read_entry<kPlane>(piece.first, batch_at, in_batch, index);
    if constexpr (sizeof...(Rest) > 0) read_entries<kPlane + 1>(piece.rest, batch_at, in_batch, index);
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

// pool: product_pool_bytes(n_in). A row is shared by row_threads threads, each with the x of its own pieces, as in
// linear_vec.h, and sums are added in the same order; a team has a batch's rows at once. Where a batch has fewer, the
// other sums are anything, and nobody reads them. Little code: most of it runs once a phase, and instructions have to
// be read too.
template <class Format>
LB_APART void product(const ProductTask& p, int part, WeightStream& stream, unsigned char* pool, PhaseWait wait) {
  using Rows = RingRows<Format>;
  constexpr bool kIsRounded = quant::plane_format(Format::kType).block_values > 1;
  float* sums = reinterpret_cast<float*>(pool);  // [rows of a pass, row_warps]
  float* staged = reinterpret_cast<float*>(pool + kProductSumsBytes);
  LinearVec vec = {};
  vec.group.products[0].x = staged;
  vec.group.products[0].n_in = p.op.n_in;
  if constexpr (kIsRounded)
    vec.x = rounded_rows(pool + kProductSumsBytes + (size_t(p.op.n_in) * 4 + 15) / 16 * 16, 1, p.op.n_in, false);
  // No division: it would take longer than the whole wait.
  const int team = int(uint32_t(thread_id()) * p.team_step >> 20), n_teams = p.n_teams, row_threads = p.row_threads;
  const int column = thread_id() - team * row_threads;
  const bool is_member = team < n_teams;  // the others are left over
  const int begin = part * p.rows_each + min(part, p.more), n_rows = p.rows_each + (part < p.more ? 1 : 0);
  const int n_pieces = (p.op.n_in + Format::kValues - 1) / Format::kValues, row_warps = row_threads / 32;
  const bool is_long = n_pieces > row_threads;
  const int batch_rows = p.batch_rows * n_teams, batch_chunks = p.batch_rows >> p.chunk_shift;
  const int n_batch_rows = p.batch_rows, pass_rows = max(kPassRows / batch_rows, 1) * batch_rows;
  int at = stream.at, n_step = stream.step;
  uint32_t chunk = stream.chunk;

  const f32x4 first_w = first_weights(p);
  wait();
  stage_x(p, first_w, staged, sums, wait);
  if constexpr (kIsRounded) round_x(staged, p.op.n_in, vec.x);
  if (!wait.is_barrier) wait.has_passed();
  typename Format::X x = {};
  if (is_member && column < n_pieces) read_x<Format>(x, vec, column);

  LB_UNROLL_BY(1)
  for (int matrix = p.up != nullptr ? 0 : 1; matrix < 2; ++matrix) {
    const bool is_gate = matrix == 0, is_up = !is_gate && p.up != nullptr;
    const StreamStep& step = stream.steps[n_step];
    n_step = n_step + 1 == stream.n_steps ? 0 : n_step + 1;
    Rows rows(stream, step, p, team);
    const int chunk_bytes = 16 * int(step.at[quant::kMaxPlanes]), last_bytes = 16 * int(step.last_size);
    int chunks_left = int(step.n_chunks);
    LB_UNROLL_BY(1)
    for (int pass = 0; pass < n_rows; pass += pass_rows) {
      const int pass_end = min(pass + pass_rows, n_rows), own = pass + thread_id();
      float y[1] = {}, gate = 0;
      if (own < pass_end && p.op.add != nullptr) {
        if (p.add_words.at >= 0)
          read_words<1>(wait, {wait.words + p.add_words.at + begin + own}, {wait.number_of(p.add_words)}, y);
        else
          y[0] = p.op.add[begin + own];
      }
      if (own < pass_end && is_up) gate = p.gate[begin + own];
      LB_UNROLL_BY(1)
      for (int first = pass; first < pass_end; first += batch_rows) {
        const int n_chunks = min(batch_chunks, chunks_left);
        LB_UNROLL_BY(1)
        for (int i = 0; i < n_chunks; ++i) barrier_wait(stream.full_of(chunk + i), stream.parity(chunk + i));
        const int rows_left = n_rows - first - team;
        if (n_rows - first < batch_rows) rows.keep(rows_left, n_teams);
        float total[Rows::kRows] = {};
        LB_UNROLL_BY(1)
        for (int ahead = 0; ahead < n_pieces && is_member && rows_left > 0; ahead += row_threads) {
          const int piece = column + ahead, there = min(piece, n_pieces - 1);
          if (is_long) x = {};
          if (is_long && piece < n_pieces) read_x<Format>(x, vec, piece);
          typename Format::Piece pieces[Rows::kRows];
          LB_UNROLL
          for (int i = 0; i < Rows::kRows; ++i) pieces[i] = rows.read(at, i, there);
          LB_UNROLL
          for (int i = 0; i < Rows::kRows; ++i) total[i] += Format::dot(pieces[i], x, there);
        }
        warp_barrier();
        if (lane() < n_chunks) barrier_arrive(stream.empty_of(chunk + lane()));
        chunk += uint32_t(n_chunks);
        chunks_left -= n_chunks;
        at += n_chunks * chunk_bytes + (chunks_left == 0 ? last_bytes - chunk_bytes : 0);
        if (at >= rows.ring_bytes) at -= rows.ring_bytes;
        const float sum = sum_each(total);
        const int row = lane() / (32 / Rows::kRows);
        if (lane() % (32 / Rows::kRows) == 0 && row < n_batch_rows && is_member)
          sums[(first - pass + row * n_teams + team) * row_warps + column / 32] = sum;
      }
      block_barrier();
      if (own < pass_end) {
        float sum = 0;
        LB_UNROLL_BY(4)
        for (int warp = 0; warp < row_warps; ++warp) sum += sums[thread_id() * row_warps + warp];
        if (is_gate) {
          p.gate[begin + own] = silu(sum);
        } else {
          y[0] = is_up ? gate * sum : y[0] + sum;
          if (p.y_words >= 0) wait.write(p.y_words + begin + own, y[0]);
          if (p.writes_y != 0) p.op.y[begin + own] = y[0];
        }
      }
      if (is_gate || pass_end < n_rows) block_barrier();  // the sums are read before the next pass writes them
    }
  }
  if (thread_id() == 0) {
    stream.at = at;
    stream.chunk = chunk;
    stream.step = n_step;
  }
}

}  // namespace lb::gpu
