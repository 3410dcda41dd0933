// One part of a product whose weights stream through the ring (weight_stream.h).
#pragma once

#include "gpu/megakernel/stage_x.h"
#include "gpu/megakernel/sum_stream.h"
#include "gpu/megakernel/weight_stream.h"
#include "gpu/warp_sums.h"

namespace lb::gpu {

// Weight source of a megakernel's products: one helper warp copies weights, another runs the epilogue.
struct StreamedWeights {
  static constexpr int kHelpers = kMegaHelpers;         // threads
  static constexpr int kActMatrices = 2, kSumRows = 4;  // of experts: in flight
  LB_DEVICE static void init() {
    mega_stream().init();
    mega_sums().init();
  }
  LB_DEVICE static void help(const Mega& p) {
    if (warp() == kMegaThreads / 32) {
      opaque(&mega_stream())->copy_all(p);
    } else {
      finish_products(p);
    }
  }
  LB_DEVICE static void wait_until_published(const StreamCursor& cursor) {
    mega_sums().wait_until_published(cursor.pass);
  }
  LB_DEVICE static void wait_until_finished(const StreamCursor& cursor) {
    mega_sums().wait_until_finished(cursor.pass);
  }
  LB_DEVICE static void stop(const StreamCursor& cursor) {
    mega_stream().stop(cursor.chunk);
    mega_sums().stop(cursor.pass);
  }
};

template <DType kType, int kValues, class Entry>
LB_DEVICE constexpr int piece_sharers(int plane) {  // number of neighbouring pieces that share an entry of a plane
  const quant::PlaneFormat format = quant::plane_format(kType);
  if (format.part_bytes[plane] == 0) return kAllPieces;
  return format.block_values < kValues ? 1
                                       : format.block_values / kValues * int(sizeof(Entry)) / format.part_bytes[plane];
}

// Addresses of a thread's pieces of a batch's rows in the ring, as byte offsets in dynamic shared memory or in a chunk.
template <class Format>
struct RingRows {
  using Piece = typename Format::Piece;
  static constexpr int kPlanes = quant::plane_format(Format::kType).n_planes;
  static constexpr int kRows = max_batch_rows(quant::plane_format(Format::kType).block_values == 1);
  int own[kPlanes];          // offset in a chunk of the team's first row
  int stride[kPlanes];       // between rows of the team
  int chunk_at, row[kRows];  // offset of the batch's chunk; the team's rows in it

  LB_DEVICE RingRows(const ProductTask& p, const TaskStep& step, int team) : chunk_at(), row() {
    LB_UNROLL
    for (int k = 0; k < kPlanes; ++k) {
      own[k] = p.plane_at[k] + (step.skews >> 4 * k & 15) + team * p.row_bytes[k];
      stride[k] = p.n_teams * p.row_bytes[k];
    }
  }
  // A missing row rereads the team's first row, because the ring after the chunk may be written meanwhile. rows_left:
  // rows from the team's first row on.
  LB_DEVICE void go_to(int offset, int rows_left, int n_teams) {
    chunk_at = offset;
    LB_UNROLL
    for (int i = 0; i < kRows; ++i) row[i] = i * n_teams < rows_left ? i : 0;
  }
  LB_DEVICE void read(Piece (&pieces)[kRows], int piece) const {
    LB_UNROLL
    for (int i = 0; i < kRows; ++i) read_entries<0>(pieces[i], row[i], piece);
  }

 private:
  template <int kPlane, class Entry>
  LB_DEVICE Entry read_entry(int row, int piece) const {
    const int offset = piece / piece_sharers<Format::kType, Format::kValues, Entry>(kPlane) * int(sizeof(Entry));
    return load<Entry>(dynamic_shared<unsigned char>() + (row * stride[kPlane] + (chunk_at + own[kPlane] + offset)));
  }
  template <int kPlane>
  LB_DEVICE void read_entries(u32x4& entry, int row, int piece) const {
    entry = read_entry<kPlane, u32x4>(row, piece);
  }
  template <int kPlane, class First, class... Rest>
  LB_DEVICE void read_entries(Parts<First, Rest...>& parts, int row, int piece) const {
    parts.first = read_entry<kPlane, First>(row, piece);
    if constexpr (sizeof...(Rest) > 0) read_entries<kPlane + 1>(parts.rest, row, piece);
  }
};

// pool: product_pool_bytes(). A team of row_threads threads shares each row of a batch; each thread holds the x of its
// own pieces. In a batch with fewer rows, the sums of missing rows are undefined and unused.
//
// The critical path of a phase is what follows its wait: x to shared memory, a barrier, the products and the epilogue.
// Everything else runs earlier, while x is on its way, and must not take longer than that. No barrier ends a product: a
// finished thread continues. Data that other threads may still read is overwritten only after all have published their
// sums; the next step waits for that.
template <class Format>
LB_NOINLINE void product(const ProductTask& p, TaskStep step, StepContext context, unsigned char* pool,
                         PhaseWait wait) {
  WeightStream& stream = mega_stream();
  using Rows = RingRows<Format>;
  constexpr bool kIsRounded = quant::plane_format(Format::kType).block_values > 1;
  SumStream& sums = mega_sums();
  const StagedX<kIsRounded> staged(pool, p.op.n_in);
  // team_step avoids a division, which would take longer than the whole wait.
  const int team = int(uint32_t(thread_id()) * p.team_step >> 20), n_teams = p.n_teams, row_threads = p.row_threads;
  const int column = thread_id() - team * row_threads, row_warps = row_threads / 32;
  const bool is_member = team < n_teams;  // other threads belong to no team
  const int n_rows = p.rows_each + (step.part < p.more ? p.row_unit : 0);
  const int n_pieces = p.n_pieces, n_matrices = p.up != nullptr ? 2 : 1, pass_rows = p.pass_rows;
  const int batch_rows = p.batch_rows * n_teams;
  const bool keeps_x = row_threads >= n_pieces, is_norm = p.from == XFrom::kRms;
  uint32_t chunk = context.now.chunk, n_pass = context.now.pass;
  Rows rows(p, step, team);
  bool has_x = false;
  typename Format::X x = {};
  LB_UNROLL_BY(1)
  for (int pass = 0; pass < n_rows; pass += pass_rows) {
    const int own_rows = min(pass_rows, n_rows - pass);
    RowSums& to = sums.passes[n_pass % 2];
    sums.wait_for_slot(n_pass);
    LB_UNROLL_BY(1)
    for (int matrix = 0; matrix < n_matrices; ++matrix) {
      LB_UNROLL_BY(1)
      for (int first = 0; first < own_rows; first += batch_rows) {
        const int rows_left = min(own_rows - first, batch_rows) - team;
        barrier_wait(stream.full_of(chunk), stream.parity(chunk));
        rows.go_to(stream.offset[chunk % kMegaChunks], rows_left, n_teams);
        float squares = 0;
        const bool is_first = !has_x;
        if (is_first) {
          sums.wait_until_published(context.now.pass);
          context.prepare_next(step);
          wait();
          squares = stage_x<kIsRounded>(p, pool, wait);
          if (!wait.is_barrier) wait.mark_ready();
          copy_wait<0>();
          block_barrier();
          if (keeps_x && column < n_pieces) read_x<Format>(x, staged, column);
          has_x = true;
        }
        float total[Rows::kRows] = {};
        if (is_member && rows_left > 0) {
          LB_UNROLL_BY(1)  // not unrolled: every phase fetches this code from memory
          for (int piece = column; piece < n_pieces; piece += row_threads) {
            typename Format::Piece pieces[Rows::kRows];
            rows.read(pieces, piece);
            if (!keeps_x) read_x<Format>(x, staged, piece);
            LB_UNROLL
            for (int i = 0; i < Rows::kRows; ++i) total[i] += Format::dot(pieces[i], x, piece);
          }
        }
        barrier_arrive(stream.empty_of(chunk));
        ++chunk;
        const float sum = is_first && is_norm ? warp_sums(total, squares) : warp_sums(total);
        if (is_first && is_norm && lane() == 0) to.squares[warp()] = squares;
        constexpr int kLanes = 32 / Rows::kRows;  // lanes that hold the same sum
        const int row = lane() / kLanes * n_teams + team, line = matrix * row_warps + column / 32;
        if (lane() % kLanes == 0 && row < batch_rows && is_member) to.v[line * pass_rows + first + row] = sum;
      }
    }
    sums.publish(n_pass++);
  }
}

}  // namespace lb::gpu
