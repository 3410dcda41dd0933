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

// Where x goes in shared memory: as it is, or rounded.
template <bool kIsRounded>
struct StagedX {
  float* values;
  RoundedRows rounded;

  LB_DEVICE StagedX(unsigned char* at, int n_in) : values(reinterpret_cast<float*>(at)), rounded() {
    if constexpr (kIsRounded) rounded = rounded_rows(at, 1, n_in, false);
  }
  // Four values from `at` on, by whole warps.
  LB_DEVICE void put(int at, const f32x4& v, bool is_inside) const {
    if constexpr (kIsRounded) {
      round_to_codes(rounded, at, v, is_inside);
    } else if (is_inside) {
      store(values + at, v);
    }
  }
};

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

// A norm's x but for its common factor, which waits for all squares: the rows' sums take it. squares: of each warp.
template <class X>
LB_DEVICE void stage_norm(const ProductTask& p, const f32x4& first_w, const X& to, float* squares,
                          const PhaseWait& wait) {
  const int n = p.op.n_in, mine = 4 * thread_id();
  float sum = 0;
  LB_UNROLL_BY(1)
  for (int i = mine; i - 4 * lane() < n; i += 4 * n_threads()) {
    f32x4 v[1], w = first_w;
    if (i != mine && i < n) w = load_cached<f32x4>(p.w + i);
    read_fours<1>(wait, p.a_words, p.a, {i < n ? i : -1}, v);
    sum = add_squares(sum, v[0]);
    LB_UNROLL
    for (int j = 0; j < 4; ++j) v[0][j] *= w[j];
    to.put(i, v[0], i < n);
  }
  sum = warp_sum(sum);
  if (lane() == 0) squares[warp()] = sum;
}

LB_DEVICE float factor_of(const ProductTask& p, const float* squares) {
  float sum = 0;
  LB_UNROLL
  for (int i = 0; i < kMegaThreads / 32; i += 4) {
    const f32x4 v = load<f32x4>(squares + i);
    sum += v[0] + v[1] + (v[2] + v[3]);
  }
  return rsqrt_fast(sum * p.mean_of + p.eps);
}

// A head is a warp's. The gates were made with what o is made of, so they are there first.
template <class X>
LB_DEVICE void stage_gated(const ProductTask& p, const f32x4& w, const X& to, const PhaseWait& wait) {
  const int dim = p.head_dim;
  LB_UNROLL_BY(1)
  for (int first = warp(); first < p.heads; first += kHeadsAtOnce * n_warps()) {
    int at[kHeadsAtOnce];
    float sums[kHeadsAtOnce];
    f32x4 gates[kHeadsAtOnce], v[kHeadsAtOnce];
    LB_UNROLL
    for (int k = 0; k < kHeadsAtOnce; ++k) {
      const int head = first + k * n_warps();
      at[k] = head < p.heads && 4 * lane() < dim ? head * dim + 4 * lane() : -1;
    }
    read_fours(wait, p.b_words, p.b, at, gates);
    LB_UNROLL
    for (int k = 0; k < kHeadsAtOnce; ++k) LB_UNROLL
    for (int j = 0; j < 4; ++j) gates[k][j] = silu(gates[k][j]) * w[j];
    read_fours(wait, p.a_words, p.a, at, v);
    LB_UNROLL
    for (int k = 0; k < kHeadsAtOnce; ++k) sums[k] = warp_sum(add_squares(0, v[k]));
    LB_UNROLL
    for (int k = 0; k < kHeadsAtOnce; ++k) {
      const float scale = rsqrt_fast(sums[k] * p.mean_of + p.eps);
      LB_UNROLL
      for (int j = 0; j < 4; ++j) v[k][j] *= scale * gates[k][j];
      to.put(at[k], v[k], at[k] >= 0);
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
    read_fours(wait, p.a_words, p.a, at, v);
    LB_UNROLL
    for (int k = 0; k < kAtOnce; ++k)
      if (first - 4 * lane() + k * step < n) to.put(at[k], v[k], at[k] >= 0);
  }
}

// Codes and scales follow each other as in RoundedRows.
LB_DEVICE void stage_codes(const ProductTask& p, const RoundedRows& to, const PhaseWait& wait) {
  constexpr int kAtOnce = 2;
  const int n = p.op.n_in / 4 + p.op.n_in / kRoundRun, step = 2 * n_threads();
  const uint32_t number = wait.number_of(p.a_words);
  const Word* from = mega_state().words + p.a_words.at;
  LB_UNROLL_BY(1)
  for (int first = 2 * thread_id(); first < n; first += kAtOnce * step) {
    uint32_t differs;
    Patience patience;
    Word words[kAtOnce][2];
    LB_UNROLL_BY(1)
    do {
      differs = 0;
      LB_UNROLL
      for (int k = 0; k < kAtOnce; ++k) {
        words[k][0] = words[k][1] = Word(number) << 32;
        if (first + k * step < n) load_relaxed(from + first + k * step, words[k][0], words[k][1]);
      }
      LB_UNROLL
      for (int k = 0; k < kAtOnce; ++k) differs |= (words[k][0] >> 32 ^ number) | (words[k][1] >> 32 ^ number);
    } while (differs != 0 && !patience.ends(wait));
    LB_UNROLL
    for (int k = 0; k < kAtOnce; ++k)
      if (first + k * step < n)
        store(to.high + 4 * (first + k * step), u32x2{uint32_t(words[k][0]), uint32_t(words[k][1])});
  }
}

// A run of y, by a warp.
LB_DEVICE void write_codes(const ProductTask& p, int row, float y, const PhaseWait& wait) {
  int largest = magnitude(y);
  LB_UNROLL
  for (int mask = 1; mask < 32; mask *= 2) largest = max(largest, shuffle_xor(largest, mask));
  const RunScale run(largest);
  uint32_t codes = run.code(y) << 8 * (lane() % 4);
  codes |= shuffle_xor(codes, 1);
  codes |= shuffle_xor(codes, 2);
  if (lane() % 4 == 0) wait.write(p.y_words + row / 4, quant::float_of(codes));
  if (lane() == 0) wait.write(p.y_words + p.op.n_out / 4 + row / kRoundRun, run.scale());
}

// x of a product, or what stands for it, to shared memory.
template <bool kIsRounded>
LB_APART void stage_x(const ProductTask& p, f32x4 first_w, unsigned char* at, float* squares, PhaseWait wait) {
  const StagedX<kIsRounded> to(at, p.op.n_in);
  switch (p.from) {
    case XFrom::kRms: stage_norm(p, first_w, to, squares, wait); break;
    case XFrom::kGatedRms: stage_gated(p, first_w, to, wait); break;
    case XFrom::kCodes: stage_codes(p, to.rounded, wait); break;
    default: stage_values<kIsRounded ? 2 : 4>(p, to, wait);
  }
}

template <DType kType, int kValues, class Entry>
LB_DEVICE constexpr int piece_sharers(int plane) {  // neighbouring pieces that have an entry of a plane in common
  const quant::PlaneFormat format = quant::plane_format(kType);
  return format.block_values < kValues ? 1
                                       : format.block_values / kValues * int(sizeof(Entry)) / format.part_bytes[plane];
}

// Where a thread's pieces of a batch's rows are in the ring of weights: those of its first piece.
template <class Format>
struct RingRows {
  using Piece = typename Format::Piece;
  static constexpr int kPlanes = quant::plane_format(Format::kType).n_planes;
  static constexpr int kRows = most_batch_rows(quant::plane_format(Format::kType).block_values == 1);
  // Of more planes there are too many places for the registers.
  static constexpr int kHeld = kPlanes > 2 ? 1 : kRows;
  const int32_t* row_at;
  int ring_end, ring_bytes, first;
  int at[kHeld][kPlanes];  // in dynamic shared memory: of each row; or of all, which row_at precedes

  LB_DEVICE RingRows(const ProductTask& p, const WeightStream& stream, const StreamStep& step, int team, int first)
      : row_at(p.row_at), ring_end(stream.ring_at + stream.ring_bytes), ring_bytes(stream.ring_bytes), first(first) {
    begin<0>(Piece{}, p, step, stream.ring_at + stream.at, team);
  }
  // The batch `bytes` behind.
  LB_DEVICE void advance(int bytes) {
    LB_UNROLL
    for (int i = 0; i < kHeld; ++i) LB_UNROLL
    for (int k = 0; k < kPlanes; ++k) at[i][k] = in_ring(at[i][k] + bytes);
  }
  // With rows_left from the thread's first on. For what is not there the first row again: the ring may be written
  // there meanwhile.
  LB_DEVICE void read(Piece (&pieces)[kRows], int rows_left, int n_teams) const {
    LB_UNROLL
    for (int i = 0; i < kRows; ++i) {
      int from[kPlanes];
      choose(from, i, rows_left, n_teams);
      read_entries<0>(pieces[i], from);
    }
  }
  // The same of another piece.
  LB_DEVICE void read(Piece (&pieces)[kRows], int rows_left, int n_teams, int piece) const {
    LB_UNROLL
    for (int i = 0; i < kRows; ++i) {
      int from[kPlanes];
      choose(from, i, rows_left, n_teams);
      move<0>(Piece{}, from, piece);
      read_entries<0>(pieces[i], from);
    }
  }

 private:
  LB_DEVICE void choose(int (&from)[kPlanes], int i, int rows_left, int n_teams) const {
    const bool is_there = i == 0 || i * n_teams < rows_left;
    LB_UNROLL
    for (int k = 0; k < kPlanes; ++k) {
      if constexpr (kHeld > 1) {
        from[k] = is_there ? at[i][k] : at[0][k];
      } else {
        from[k] = in_ring(at[0][k] + row_at[k * kRows + (is_there ? i : 0)]);
      }
    }
  }
  LB_DEVICE int in_ring(int from) const { return from >= ring_end ? from - ring_bytes : from; }
  template <int kPlane, class Entry>
  LB_DEVICE static int place(int piece) {
    return piece / piece_sharers<Format::kType, Format::kValues, Entry>(kPlane) * int(sizeof(Entry));
  }
  template <int kPlane, class Entry>
  LB_DEVICE void begin_plane(const ProductTask& p, const StreamStep& step, int batch_at, int team) {
    const int own = batch_at + (int(step.skew[kPlane]) & 15) + team * p.row_bytes[kPlane] + place<kPlane, Entry>(first);
    LB_UNROLL
    for (int i = 0; i < kHeld; ++i) at[i][kPlane] = in_ring(kHeld > 1 ? own + p.row_at[kPlane * kRows + i] : own);
  }
  template <int kPlane>
  LB_DEVICE void begin(const u32x4&, const ProductTask& p, const StreamStep& step, int batch_at, int team) {
    begin_plane<kPlane, u32x4>(p, step, batch_at, team);
  }
  template <int kPlane, class First, class... Rest>
  LB_DEVICE void begin(const Parts<First, Rest...>&, const ProductTask& p, const StreamStep& step, int batch_at,
                       int team) {
    begin_plane<kPlane, First>(p, step, batch_at, team);
    if constexpr (sizeof...(Rest) > 0) begin<kPlane + 1>(Parts<Rest...>{}, p, step, batch_at, team);
  }
  template <int kPlane>
  LB_DEVICE void move(const u32x4&, int (&from)[kPlanes], int piece) const {
    from[kPlane] = in_ring(from[kPlane] + place<kPlane, u32x4>(piece) - place<kPlane, u32x4>(first));
  }
  template <int kPlane, class First, class... Rest>
  LB_DEVICE void move(const Parts<First, Rest...>&, int (&from)[kPlanes], int piece) const {
    from[kPlane] = in_ring(from[kPlane] + place<kPlane, First>(piece) - place<kPlane, First>(first));
    if constexpr (sizeof...(Rest) > 0) move<kPlane + 1>(Parts<Rest...>{}, from, piece);
  }
  template <int kPlane>
  LB_DEVICE void read_entries(u32x4& piece, const int (&from)[kPlanes]) const {
    piece = load<u32x4>(dynamic_shared<unsigned char>() + from[kPlane]);
  }
  template <int kPlane, class First, class... Rest>
  LB_DEVICE void read_entries(Parts<First, Rest...>& piece, const int (&from)[kPlanes]) const {
    piece.first = load<First>(dynamic_shared<unsigned char>() + from[kPlane]);
    if constexpr (sizeof...(Rest) > 0) read_entries<kPlane + 1>(piece.rest, from);
  }
};

// Of a piece of staged x.
template <class Format, bool kIsRounded>
LB_DEVICE void read_x(typename Format::X& x, const StagedX<kIsRounded>& staged, int piece) {
  if constexpr (kIsRounded) {
    LinearVec vec = {};
    vec.x = staged.rounded;
    x.read(vec, 0, piece);
    if constexpr (Format::kValues == 32) {  // of types with offsets, whose pieces are whole runs
      int sum = 0;
      LB_UNROLL
      for (int i = 0; i < Format::kValues / 4; ++i) sum = dot4(x.high[i], 0x01010101, sum);
      x.sum = x.scale * float(sum);
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

// pool: product_pool_bytes(n_in). A row is shared by row_threads threads, each with the x of its own pieces, as in
// linear_vec.h, and sums are added in the same order; a team has a batch's rows at once. Where a batch has fewer, the
// other sums are anything, and nobody reads them.
//
// A phase takes as long as what stands behind its wait: x to shared memory, a barrier, products, a barrier, sums. All
// else is done before: where weights are, whether they are there, what is added.
template <class Format>
LB_APART void product(const ProductTask& p, int part, unsigned char* pool, PhaseWait wait) {
  WeightStream& stream = mega_stream();
  using Rows = RingRows<Format>;
  constexpr bool kIsRounded = quant::plane_format(Format::kType).block_values > 1;
  float* sums = reinterpret_cast<float*>(pool);  // [matrices, row_warps, rows of a pass]
  float* squares = reinterpret_cast<float*>(pool + kProductSumsBytes);
  unsigned char* staged_at = pool + kProductSumsBytes + kProductSquaresBytes;
  const StagedX<kIsRounded> staged(staged_at, p.op.n_in);
  const f32x4 first_w = first_weights(p);
  // No division: it would take longer than the whole wait.
  const int team = int(uint32_t(thread_id()) * p.team_step >> 20), n_teams = p.n_teams, row_threads = p.row_threads;
  const int column = thread_id() - team * row_threads, row_warps = row_threads / 32;
  const bool is_member = team < n_teams;  // the others are left over
  const int begin = part * p.rows_each + min(part, p.more) * p.row_unit;
  const int n_rows = p.rows_each + (part < p.more ? p.row_unit : 0);
  const int n_pieces = p.n_pieces, n_matrices = p.up != nullptr ? 2 : 1, pass_rows = p.pass_rows;
  const bool is_long = n_pieces > row_threads;
  const int batch_rows = p.batch_rows * n_teams, batch_chunks = p.batch_chunks,
            chunk_bytes = p.plane_at[quant::kMaxPlanes];
  int n_step = stream.step;
  uint32_t chunk = stream.chunk;
  Rows rows(p, stream, stream.steps()[n_step], team, min(column, n_pieces - 1));

  int at = stream.at, last_bytes = 0, chunks_left = 0;
  bool has_x = false;
  float factor = 1;
  typename Format::X x = {};
  LB_UNROLL_BY(1)
  for (int pass = 0; pass < n_rows; pass += pass_rows) {
    const int pass_end = min(pass + pass_rows, n_rows), own = pass + thread_id();
    // What is added was there two phases ago, as a rule: looked at when it is needed.
    const Word* add_at = mega_state().words + p.add_words.at + begin + own;
    Word added = 0;
    if (own < pass_end && p.add_words.at >= 0) added = load_relaxed(add_at);
    LB_UNROLL_BY(1)
    for (int matrix = 0; matrix < n_matrices; ++matrix) {
      if (chunks_left == 0) {  // of the last step
        chunks_left = int(stream.steps()[n_step].n_chunks);
        last_bytes = 16 * int(stream.steps()[n_step].last_size);
        n_step = n_step + 1 == stream.n_steps ? 0 : n_step + 1;
      }
      LB_UNROLL_BY(1)
      for (int first = pass; first < pass_end; first += batch_rows) {
        const int n_chunks = min(batch_chunks, chunks_left);
        const int rows_left = n_rows - first - team;
        LB_UNROLL_BY(1)
        for (int i = 0; i < n_chunks; ++i) barrier_wait(stream.full_of(chunk + i), stream.parity(chunk + i));
        if (!has_x) {
          wait();
          stage_x<kIsRounded>(p, first_w, staged_at, squares, wait);
          if (!wait.is_barrier) wait.has_passed();
          block_barrier();
          if (column < n_pieces) read_x<Format>(x, staged, column);
          if (p.from == XFrom::kRms) factor = factor_of(p, squares);
          has_x = true;
        }
        float total[Rows::kRows] = {};
        if (is_member && rows_left > 0) {
          int piece = column;
          typename Format::Piece pieces[Rows::kRows];
          rows.read(pieces, rows_left, n_teams);
          LB_UNROLL_BY(1)
          for (;;) {
            LB_UNROLL
            for (int i = 0; i < Rows::kRows; ++i) total[i] += Format::dot(pieces[i], x, piece);
            if (!is_long) break;
            piece += row_threads;
            const bool is_end = piece - column >= n_pieces;
            x = {};
            if (is_end || piece < n_pieces) read_x<Format>(x, staged, is_end ? column : piece);
            if (is_end) break;
            rows.read(pieces, rows_left, n_teams, min(piece, n_pieces - 1));
          }
        }
        warp_barrier();
        if (lane() < n_chunks) barrier_arrive(stream.empty_of(chunk + lane()));
        chunk += uint32_t(n_chunks);
        chunks_left -= n_chunks;
        const int bytes = n_chunks * chunk_bytes + (chunks_left == 0 ? last_bytes - chunk_bytes : 0);
        at += bytes;
        if (at >= rows.ring_bytes) at -= rows.ring_bytes;
        rows.advance(bytes);
        const float sum = sum_each(total);
        const int row = lane() / (32 / Rows::kRows) * n_teams + team, to = matrix * row_warps + column / 32;
        if (lane() % (32 / Rows::kRows) == 0 && row < batch_rows && is_member)
          sums[to * pass_rows + first - pass + row] = sum;
      }
    }
    block_barrier();
    if (own < pass_end) {
      float products[2] = {};
      LB_UNROLL
      for (int matrix = 0; matrix < 2; ++matrix) {
        LB_UNROLL_BY(1)
        for (int warp = 0; warp < row_warps && matrix < n_matrices; ++warp)
          products[matrix] += sums[(matrix * row_warps + warp) * pass_rows + thread_id()];
      }
      float y[1] = {};
      if (n_matrices > 1) {
        y[0] = silu(factor * products[0]) * (factor * products[1]);
      } else {
        if (p.add_words.at >= 0) {
          y[0] = value_of_word(added);
          if (uint32_t(added >> 32) != wait.number_of(p.add_words))
            read_words<1>(wait, {add_at}, {wait.number_of(p.add_words)}, y);
        } else if (p.op.add != nullptr) {
          y[0] = p.op.add[begin + own];
        }
        y[0] += factor * products[0];
      }
      if (p.writes_codes != 0) {
        write_codes(p, begin + own, y[0], wait);
      } else if (p.y_words >= 0) {
        wait.write(p.y_words + begin + own, y[0]);
      }
      if (p.writes_y != 0) p.op.y[begin + own] = y[0];
    }
    if (pass_end < n_rows) block_barrier();  // the sums are read before the next pass writes them
  }
  if (thread_id() == 0) {
    stream.at = at;
    stream.chunk = chunk;
    stream.step = n_step;
  }
}

}  // namespace lb::gpu
