// The body of the mat-vec: y = w x (+ add) for one row of x and one of the products of a group.
//
// A block has one product and a contiguous share of its rows (GemvMatrix). Columns stay, rows pass:
// row_threads threads share a weight row, each holds the x of its own pieces of 16 bytes in registers and meets the
// same pieces of row after row; the block's teams of row_threads take turns over its rows. Reading runs kBatch rows
// ahead in registers, and the first batch is asked for before the previous kernel has ended: weights never depend on
// it. Sums of a row end in shared memory, one from each warp, so the loop has no barrier. The order of additions
// depends on the shape and the launch alone. Grid: x shares the products' rows, y the rows of x. Bound: bandwidth, the
// bytes of the weights (bytes_of in gpu/gemv/choose.h). Notebook: docs/kernels/gemv.md.
#pragma once

#include "gpu/gemv/shape.h"

namespace lb::gpu {

// v[i] += the other half's v[i], each half of the lanes keeping one half of the values: a step of sum_eight.
template <int kHalf>
LB_DEVICE void exchange_halves(float (&v)[8]) {
  const bool is_upper = lane() & 4 * kHalf;
  LB_UNROLL
  for (int i = 0; i < kHalf; ++i) {
    const float lower = v[i], upper = v[i + kHalf];
    v[i] = (is_upper ? upper : lower) + shuffle_xor(is_upper ? lower : upper, 4 * kHalf);
  }
}

// Sums eight values over the warp; lane l gets that of v[l / 4]. Exchanging halves costs 9 shuffles instead of 40.
LB_DEVICE float sum_eight(float (&v)[8]) {
  exchange_halves<4>(v);
  exchange_halves<2>(v);
  exchange_halves<1>(v);
  v[0] += shuffle_xor(v[0], 2);
  return v[0] + shuffle_xor(v[0], 1);
}

// The rows of a block, and a thread's part in them.
struct GemvBlock {
  int matrix = 0, begin, n_rows;
  int team, column;  // who takes which rows, and the place among the threads of a row
  LB_DEVICE explicit GemvBlock(const Gemv& p) {
    LB_UNROLL
    for (int i = 1; i < kMaxProducts; ++i)
      if (block_id() >= p.first_block[i - 1]) matrix = i;
    const int block = matrix == 0 ? block_id() : block_id() - p.first_block[matrix - 1];
    const int n_longer = p.matrices[matrix].n_longer;
    begin = block * p.matrices[matrix].block_rows + min(block, n_longer);
    n_rows = p.matrices[matrix].block_rows + (block < n_longer);
    team = thread_id() * p.team_factor >> kGemvTeamShift;
    column = thread_id() - team * p.row_threads;
  }
};

// The sums that the warps of a block leave in shared memory, and what becomes of them: row `thread_id()` of a pass is
// added up by that thread, to what it had before.
struct PassSums {
  float* warp_sums;  // [pass_rows, row_warps]
  float* y;
  float initial = 0;
  int row_warps;
  bool has_row;

  LB_DEVICE PassSums(const Gemv& p, const GemvBlock& block, int pass, int pass_end, bool continues)
      : warp_sums(dynamic_shared<float>()), row_warps(p.row_threads / 32), has_row(thread_id() < pass_end - pass) {
    const Linear& op = p.group.products[block.matrix];
    y = op.y + long(block_id_y()) * op.n_out + block.begin + pass + thread_id();
    const float* add = continues ? y : op.add != nullptr ? op.add + (y - op.y) : nullptr;
    if (has_row && add != nullptr) initial = *add;
  }
  // Of eight rows of a team, `row` the first.
  LB_DEVICE void store_sums(const Gemv& p, const GemvBlock& block, int row, float (&total)[8]) const {
    const float sum_of_warp = sum_eight(total);
    const int at = (row + lane() / 4 * p.n_teams) * row_warps + block.column / 32;
    if (lane() % 4 == 0) warp_sums[at] = sum_of_warp;
  }
  LB_DEVICE void finish() {
    block_barrier();
    if (!has_row) return;
    float sum = 0;
    for (int w = 0; w < row_warps; ++w) sum += warp_sums[thread_id() * row_warps + w];
    *y = initial + sum;
  }
};

// kPieces of a row a thread holds at once; kBatch rows are on their way at once.
template <class Format, int kPieces, int kBatch>
LB_DEVICE void gemv(const Gemv& p) {
  static_assert(8 % kBatch == 0);
  dependents_may_launch();
  const GemvBlock block(p);
  for (int first_piece = 0; first_piece < p.row_pieces; first_piece += kPieces * p.row_threads) {
    const int piece = first_piece + block.column;
    typename Format::Rows rows(p, block.matrix, block.begin + block.team, piece);
    typename Format::Piece pieces[kBatch][kPieces] = {};
    int next = block.team;  // row to read
    const auto read = [&](typename Format::Piece(&into)[kPieces]) {
      if (next >= block.n_rows) return;
      LB_UNROLL
      for (int k = 0; k < kPieces; ++k)
        if (piece + k * p.row_threads < p.row_pieces) into[k] = rows.read(k * p.row_threads);
      rows.advance(p);
      next += p.n_teams;
    };
    LB_UNROLL
    for (int b = 0; b < kBatch; ++b) read(pieces[b]);
    if (first_piece == 0) wait_for_previous();
    typename Format::X x[kPieces];
    LB_UNROLL
    for (int k = 0; k < kPieces; ++k)
      if (piece + k * p.row_threads < p.row_pieces) x[k].read(p, block_id_y(), piece + k * p.row_threads);

    for (int pass = 0; pass < block.n_rows; pass += p.pass_rows) {
      const int pass_end = min(pass + p.pass_rows, block.n_rows);
      PassSums sums(p, block, pass, pass_end, first_piece > 0);
      for (int step = pass; step < pass_end; step += 8 * p.n_teams) {
        float total[8] = {};
        LB_UNROLL
        for (int i = 0; i < 8; ++i) {
          LB_UNROLL
          for (int k = 0; k < kPieces; ++k) total[i] += Format::dot(pieces[i % kBatch][k], x[k], piece);
          read(pieces[i % kBatch]);
        }
        sums.store_sums(p, block, step - pass + block.team, total);
      }
      sums.finish();
      block_barrier();  // the sums are read before the next pass writes them
    }
  }
}

}  // namespace lb::gpu
