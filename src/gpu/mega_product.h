// A product's part, of weights that come through the ring (weight_stream.h).
#pragma once

#include "mega_stage.h"
#include "sum_stream.h"
#include "warp_sums.h"
#include "weight_stream.h"

namespace lb::gpu {

// How a megakernel's products get their weights and where their sums go: two warps help.
struct StreamedWeights {
  static constexpr int kHelpers = kMegaHelpers;
  LB_DEVICE static void init(const Mega& p) {
    mega_stream().init(p);
    mega_sums().init();
  }
  LB_DEVICE static void help(const Mega& p) {
    if (warp() == kMegaThreads / 32) {
      mega_stream().bring(p.n_tokens);
    } else {
      finish_products(p);
    }
  }
  LB_DEVICE static void wait_until_finished() { mega_sums().wait_until_finished(); }
  LB_DEVICE static void stop() {
    mega_stream().stop();
    mega_sums().stop();
  }
};

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

// pool: product_pool_bytes(). A row is shared by row_threads threads, each with the x of its own pieces; a team has
// a batch's rows at once. Where a batch has fewer, the other sums are anything, and nobody reads them.
//
// A phase takes as long as what stands behind its wait: x to shared memory, a barrier, products, and what the finishing
// warp makes of sums. All else is done before, while that is on its way: where weights are, whether they are there.
template <class Format>
LB_APART void product(const ProductTask& p, int part, StreamedWeights, unsigned char* pool, PhaseWait wait) {
  WeightStream& stream = mega_stream();
  using Rows = RingRows<Format>;
  constexpr bool kIsRounded = quant::plane_format(Format::kType).block_values > 1;
  SumStream& sums = mega_sums();
  const StagedX<kIsRounded> staged(pool, p.op.n_in);
  const f32x4 first_w = first_weights(p);
  // No division: it would take longer than the whole wait.
  const int team = int(uint32_t(thread_id()) * p.team_step >> 20), n_teams = p.n_teams, row_threads = p.row_threads;
  const int column = thread_id() - team * row_threads, row_warps = row_threads / 32;
  const bool is_member = team < n_teams;  // the others are left over
  const int n_rows = p.rows_each + (part < p.more ? p.row_unit : 0);
  const int n_pieces = p.n_pieces, n_matrices = p.up != nullptr ? 2 : 1, pass_rows = p.pass_rows;
  const bool is_long = n_pieces > row_threads;
  const int batch_rows = p.batch_rows * n_teams, batch_chunks = p.batch_chunks,
            chunk_bytes = p.plane_at[quant::kMaxPlanes];
  int n_step = stream.step;
  uint32_t chunk = stream.chunk, n_pass = sums.pass;
  Rows rows(p, stream, stream.steps()[n_step], team, min(column, n_pieces - 1));

  int at = stream.at, last_bytes = 0, chunks_left = 0;
  bool has_x = false;
  typename Format::X x = {};
  LB_UNROLL_BY(1)
  for (int pass = 0; pass < n_rows; pass += pass_rows) {
    const int pass_end = min(pass + pass_rows, n_rows);
    sums.wait_for_place(n_pass);
    RowSums& to = sums.passes[n_pass % 2];
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
          stage_x<kIsRounded>(p, first_w, pool, to.squares, wait);
          if (!wait.is_barrier) wait.has_passed();
          block_barrier();
          if (column < n_pieces) read_x<Format>(x, staged, column);
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
        LB_UNROLL_BY(1)
        for (int i = 0; i < n_chunks; ++i) barrier_arrive(stream.empty_of(chunk + i));
        chunk += uint32_t(n_chunks);
        chunks_left -= n_chunks;
        const int bytes = n_chunks * chunk_bytes + (chunks_left == 0 ? last_bytes - chunk_bytes : 0);
        at += bytes;
        if (at >= rows.ring_bytes) at -= rows.ring_bytes;
        rows.advance(bytes);
        const float sum = sum_each(total);
        const int row = lane() / (32 / Rows::kRows) * n_teams + team, line = matrix * row_warps + column / 32;
        if (lane() % (32 / Rows::kRows) == 0 && row < batch_rows && is_member)
          to.v[line * pass_rows + first - pass + row] = sum;
      }
    }
    sums.give(n_pass++);
  }
  if (thread_id() == 0) {
    sums.pass = n_pass;
    stream.at = at;
    stream.chunk = chunk;
    stream.step = n_step;
  }
}

}  // namespace lb::gpu
