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

// Where a thread's pieces of a batch's rows are in the ring of weights.
template <class Format>
struct RingRows {
  using Piece = typename Format::Piece;
  static constexpr int kPlanes = quant::plane_format(Format::kType).n_planes;
  static constexpr int kRows = most_batch_rows(quant::plane_format(Format::kType).block_values == 1);
  int chunk_bytes, chunk_shift;
  int own[kPlanes];                          // in a chunk, of the team's first row
  int stride[kPlanes];                       // from there to its next
  int chunk_at[kRows], row_in_chunk[kRows];  // of the batch's rows; chunks in the ring

  LB_DEVICE RingRows(const ProductTask& p, const WeightStream& stream, const StreamStep& step, int team)
      : chunk_bytes(p.plane_at[quant::kMaxPlanes]), chunk_shift(p.chunk_shift), chunk_at(), row_in_chunk() {
    LB_UNROLL
    for (int k = 0; k < kPlanes; ++k) {
      own[k] = stream.ring_at + p.plane_at[k] + (int(step.skew[k]) & 15) + team * p.row_bytes[k];
      stride[k] = p.n_teams * p.row_bytes[k];
    }
  }
  // The next batch has n_chunks, the last of last_bytes, behind what ends in the ring at `at`, where it then ends.
  // With rows_left from the thread's first on. For what is not there the first row again: the ring may be written
  // there meanwhile. forget: chunks of rows, kept from batch to batch, take registers that products need.
  LB_DEVICE void go_on(const WeightStream& stream, int n_chunks, int last_bytes, int rows_left, int n_teams, int& at) {
    const int shift = forget(chunk_shift), in_chunk = (1 << shift) - 1;
    if (n_chunks == 1) {  // as of short rows, whose batches are over soon
      const int begin = stream.place_behind(at, last_bytes);
      at = begin + last_bytes;
      LB_UNROLL
      for (int i = 0; i < kRows; ++i) {
        chunk_at[i] = begin;
        row_in_chunk[i] = i * n_teams < rows_left ? i : 0;
      }
      return;
    }
    int begin = at;
    LB_UNROLL
    for (int i = 0; i < kRows; ++i) {
      const int left = n_chunks - (i >> shift), bytes = left == 1 ? last_bytes : chunk_bytes;
      const bool is_next = (i & in_chunk) == 0 && left > 0, is_there = i * n_teams < rows_left;
      const int next = stream.place_behind(at, bytes);
      begin = is_next ? next : begin;
      at = is_next ? next + bytes : at;
      chunk_at[i] = is_there || i == 0 ? begin : chunk_at[0];
      row_in_chunk[i] = is_there ? i & in_chunk : 0;
    }
  }
  LB_DEVICE void read(Piece (&pieces)[kRows], int piece) const {
    LB_UNROLL
    for (int i = 0; i < kRows; ++i) read_entries<0>(pieces[i], chunk_at[i], row_in_chunk[i], piece);
  }

 private:
  template <int kPlane, class Entry>
  LB_DEVICE Entry read_entry(int chunk_at, int row, int piece) const {
    const int place = piece / piece_sharers<Format::kType, Format::kValues, Entry>(kPlane) * int(sizeof(Entry));
    return load<Entry>(dynamic_shared<unsigned char>() + (chunk_at + row * stride[kPlane] + (own[kPlane] + place)));
  }
  template <int kPlane>
  LB_DEVICE void read_entries(u32x4& entry, int chunk_at, int row, int piece) const {
    entry = read_entry<kPlane, u32x4>(chunk_at, row, piece);
  }
  template <int kPlane, class First, class... Rest>
  LB_DEVICE void read_entries(Parts<First, Rest...>& parts, int chunk_at, int row, int piece) const {
    parts.first = read_entry<kPlane, First>(chunk_at, row, piece);
    if constexpr (sizeof...(Rest) > 0) read_entries<kPlane + 1>(parts.rest, chunk_at, row, piece);
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
  const int batch_rows = p.batch_rows * n_teams, batch_chunks = p.batch_chunks;
  int n_step = stream.step;
  uint32_t chunk = stream.chunk, n_pass = sums.pass;
  Rows rows(p, stream, stream.steps()[n_step], team);

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
        const int rows_left = min(n_rows - first, batch_rows) - team;
        rows.go_on(stream, n_chunks, n_chunks == chunks_left ? last_bytes : rows.chunk_bytes, rows_left, n_teams, at);
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
          typename Format::Piece pieces[Rows::kRows];
          rows.read(pieces, min(column, n_pieces - 1));
          LB_UNROLL
          for (int i = 0; i < Rows::kRows; ++i) total[i] += Format::dot(pieces[i], x, column);
          if (column + row_threads < n_pieces) {
            LB_UNROLL_BY(1)
            for (int piece = column + row_threads; piece < n_pieces; piece += row_threads) {
              rows.read(pieces, piece);
              read_x<Format>(x, staged, piece);
              LB_UNROLL
              for (int i = 0; i < Rows::kRows; ++i) total[i] += Format::dot(pieces[i], x, piece);
            }
            read_x<Format>(x, staged, column);
          }
        }
        LB_UNROLL_BY(1)
        for (int i = 0; i < n_chunks; ++i) barrier_arrive(stream.empty_of(chunk + i));
        chunk += uint32_t(n_chunks);
        chunks_left -= n_chunks;
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
