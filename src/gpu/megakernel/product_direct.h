// One part of a product with weights read by ordinary loads, for chips without bulk copies. No warp copies weights
// ahead of the phases. Instead a thread loads its share of the first batch before it waits for x, and each further
// piece once the previous one is used. Sums are computed and added as in product_stream.h.
#pragma once

#include "gpu/megakernel/epilogue.h"
#include "gpu/megakernel/stage_x.h"
#include "gpu/warp_sums.h"

namespace lb::gpu {

// Weight source of a megakernel's products without helper warps, so all waits are empty.
struct DirectWeights {
  static constexpr int kHelpers = 0;
  static constexpr int kActMatrices = 1, kSumRows = 2;  // of experts: in flight. More would spill
  LB_DEVICE static RowSums& sums() {
    unsigned char* shared = dynamic_shared<unsigned char>();
    return *reinterpret_cast<RowSums*>(shared + kMegaSumsAt);
  }
  LB_DEVICE static void init() { sums().zero = 0; }
  LB_DEVICE static void help(const Mega&) {}
  LB_DEVICE static void wait_until_published(const StreamCursor&) {}
  LB_DEVICE static void wait_until_finished(const StreamCursor&) {}
  LB_DEVICE static void stop(const StreamCursor&) {}
};

// Rows of a team whose pieces are in registers together. Eight would spill.
inline constexpr int kBatch = 4;

// A thread's share of a product.
struct ProductShare {
  int team, column;   // column: the thread's index in its team
  int begin, n_rows;  // rows of the block

  LB_DEVICE ProductShare(const ProductTask& p, int part)
      : team(int(uint32_t(thread_id()) * p.team_step >> 20)),
        column(thread_id() - team * p.row_threads),
        begin(part * p.rows_each + min(part, p.more) * p.row_unit),
        n_rows(p.rows_each + (part < p.more ? p.row_unit : 0)) {}
  // Rows of a pass, counted from the team's first row; threads outside the teams have no rows.
  LB_DEVICE int rows_of(const ProductTask& p, int pass) const {
    return team < p.n_teams ? min(p.pass_rows, n_rows - pass) - team : 0;
  }
};

// A thread's pieces in the order of use, outer loop first: passes, matrices of a pass, batches of a matrix (kBatch rows
// of the team), columns of a batch, rows of a column.
template <class Format>
struct DirectRows {
  typename Format::Piece pieces[kBatch];  // one column of a batch, loaded ahead

  LB_DEVICE DirectRows(const ProductTask& p, const ProductShare& share) {
    begin(p, share);
    LB_UNROLL
    for (int i = 0; i < kBatch; ++i) load_next(p, share, i);
  }
  // Loads pieces[i] of the next column, for i from 0 to kBatch - 1. A missing row reads the last row. Beyond a row's
  // end the thread rereads its previous piece, which is multiplied by zeros of x.
  LB_DEVICE void load_next(const ProductTask& p, const ProductShare& share, int i) {
    if (rows_left <= 0) return;
    Gemv gemv;
    gemv.n_teams = p.n_teams;
    LB_UNROLL
    for (int k = 0; k < quant::kMaxPlanes; ++k) gemv.row_bytes[k] = p.row_bytes[k];
    pieces[i] = row.read(share.column + ahead < p.n_pieces ? ahead : max(ahead - p.row_threads, 0));
    if ((i + 1) * p.n_teams < rows_left) row.advance(gemv);
    if (i + 1 < kBatch) return;
    ahead += p.row_threads;
    if (ahead >= p.n_pieces) {
      ahead = 0;
      rows_left -= kBatch * p.n_teams;
      batch = row;
      if (rows_left <= 0) {
        const bool is_gate = p.up != nullptr && matrix == 0;
        matrix = is_gate ? 1 : 0;
        if (!is_gate) pass += p.pass_rows;
        begin(p, share);
      }
    }
    row = batch;
  }

 private:
  LB_DEVICE void begin(const ProductTask& p, const ProductShare& share) {
    const quant::PlaneLayout layout = quant::plane_layout(Format::kType, p.op.n_out, p.op.n_in);
    Gemv gemv;
    gemv.matrices[0].w = static_cast<const uint8_t*>(matrix == 0 ? p.op.w : p.up);
    LB_UNROLL
    for (int k = 0; k < quant::kMaxPlanes; ++k) {
      gemv.row_bytes[k] = p.row_bytes[k];
      if (k > 0) gemv.matrices[0].offset[k - 1] = uint32_t(layout.offset[k] / quant::kPlaneAlignment);
    }
    rows_left = share.rows_of(p, pass);
    const int first = share.begin + min(pass + share.team, share.n_rows - 1);
    batch = typename Format::Rows(gemv, 0, first, min(share.column, p.n_pieces - 1));
    row = batch;
  }

  // Position of the next piece. batch: the batch's first row; ahead: pieces from the thread's first piece.
  typename Format::Rows batch, row;
  int pass = 0, matrix = 0, rows_left, ahead = 0;
};

// pool: product_pool_bytes().
template <class Format>
LB_NOINLINE void product(const ProductTask& p, int part, unsigned char* pool, PhaseWait wait) {
  assume_shared(&p);
  constexpr bool kIsRounded = quant::plane_format(Format::kType).block_values > 1;
  RowSums& sums = DirectWeights::sums();
  const StagedX<kIsRounded> staged(pool, p.op.n_in);
  const ProductShare share(p, part);
  DirectRows<Format> rows(p, share);
  wait();
  float squares = stage_x<kIsRounded>(p, pool, wait);
  if (p.from == XFrom::kRms) {
    squares = warp_sum(squares);
    if (lane() == 0) sums.squares[warp()] = squares;
  }
  if (!wait.is_barrier) wait.mark_ready();
  block_barrier();

  const int n_teams = p.n_teams, n_pieces = p.n_pieces, row_threads = p.row_threads, row_warps = row_threads / 32;
  const int column = share.column, n_matrices = p.up != nullptr ? 2 : 1;
  typename Format::X x = {};
  if (column < n_pieces) read_x<Format>(x, staged, column);
  LB_UNROLL_BY(1)
  for (int pass = 0; pass < share.n_rows; pass += p.pass_rows) {
    const int own = pass + thread_id(), n_own = share.rows_of(p, pass);
    const bool is_writer = own < min(pass + p.pass_rows, share.n_rows);
    const Mailbox loaded = is_writer ? RowEpilogue(p, part, wait).load_added(own) : 0;
    LB_UNROLL_BY(1)
    for (int matrix = 0; matrix < n_matrices; ++matrix) {
      LB_UNROLL_BY(1)
      for (int first = 0; first < n_own; first += kBatch * n_teams) {
        float total[kBatch] = {};
        LB_UNROLL_BY(1)
        for (int piece = column; piece - column < n_pieces; piece += row_threads) {
          if (n_pieces > row_threads) x = {};
          if (n_pieces > row_threads && piece < n_pieces) read_x<Format>(x, staged, piece);
          LB_UNROLL
          for (int i = 0; i < kBatch; ++i) {
            total[i] += Format::dot(rows.pieces[i], x, min(piece, n_pieces - 1));
            rows.load_next(p, share, i);
          }
        }
        const float sum = warp_sums(total);
        const int row = first + lane() / (32 / kBatch) * n_teams, line = matrix * row_warps + column / 32;
        if (lane() % (32 / kBatch) == 0 && row < n_own) sums.v[line * p.pass_rows + row + share.team] = sum;
      }
    }
    block_barrier();
    if (is_writer) {
      const RowEpilogue epilogue(p, part, wait);  // constructed late, because the products need the registers
      const float factor = epilogue.factor(sums.squares);
      const float sum = RowSumsReader(epilogue, sums, 0, thread_id()).total();
      const RowDestination to = epilogue.destination_of(own, true);
      if (n_matrices > 1) {
        epilogue.write_gated(to, sum, RowSumsReader(epilogue, sums, 1, thread_id()).total(), factor);
      } else {
        float product[] = {factor * sum};
        if (epilogue.has_shares()) {
          epilogue.send(own, product[0]);
          epilogue.await_sums<1>({own}, wait, product);
        }
        const float added = epilogue.await_added(own, loaded, wait, [] { return false; });
        const float y = added + epilogue.plain_added(own) + product[0];
        epilogue.write(to, y);
        if (epilogue.has_logits_of_ranks()) {
          send_logit(epilogue.first_logit + own, y);
          system_fence();
        }
      }
    }
    if (pass + p.pass_rows < share.n_rows) block_barrier();  // the sums are read before the next pass overwrites them
  }
}

}  // namespace lb::gpu
