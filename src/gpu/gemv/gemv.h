// The body of GEMV: y[n_out] = w[n_out, n_in] x[n_in] (+ add[n_out]), for each row of x and each matrix of a group.
//
// Grid: x, the rows of all matrices; y, the rows of x, except for gemv_rows. A block computes contiguous rows of one
// matrix (GemvMatrix), which its teams take one after another. A thread keeps the x of its own pieces in registers and
// multiplies the same pieces of row after row. Weights are loaded into registers kBatch rows ahead. The first loads
// start before the previous kernel has ended, because weights never depend on it. Each warp stores its sum of a row in
// shared memory, so the loop has no barrier. The order of additions depends only on shape and launch. Bound: bandwidth,
// the bytes of the weights (bytes_of in choose.h). Notebook: docs/kernels/gemv.md.
#pragma once

#include "gpu/gemv/shape.h"

// Co-resident blocks per SM, by which the compiler limits registers. `lucebox tune --compile` measures other values.
#ifndef LUCEBOX_GEMV_BLOCKS
#define LUCEBOX_GEMV_BLOCKS 2
#endif

namespace lb::gpu {

// With 16-bit x the registers suffice for only two blocks.
template <int kXBits>
constexpr int kGemvBlocks = kXBits == 16 ? 2 : LUCEBOX_GEMV_BLOCKS;
// Rows in flight. With more than two blocks per SM, the registers hold only half as many; on sm_70 too.
template <int kXBits, int kBatch>
constexpr int kGemvBatch = kGemvBlocks<kXBits> > 2 || (kXBits == 16 && !kHasUniformRegisters) ? kBatch / 2 : kBatch;
template <int kBatch>
constexpr int kGemvWideBatch = kHasUniformRegisters ? kBatch : kBatch / 2;

// One step of sum_eight: each half of the lanes passes half of its values to the other half and adds the values it
// receives.
template <int kHalf>
LB_DEVICE void exchange_halves(float (&v)[8]) {
  const bool is_upper = lane() & 4 * kHalf;
  LB_UNROLL
  for (int i = 0; i < kHalf; ++i) {
    const float lower = v[i], upper = v[i + kHalf];
    v[i] = (is_upper ? upper : lower) + shuffle_xor(is_upper ? lower : upper, 4 * kHalf);
  }
}

// Sums each of eight values over the warp; lane l receives the sum of v[l / 4]. 9 shuffles instead of 40.
LB_DEVICE float sum_eight(float (&v)[8]) {
  exchange_halves<4>(v);
  exchange_halves<2>(v);
  exchange_halves<1>(v);
  v[0] += shuffle_xor(v[0], 2);
  return v[0] + shuffle_xor(v[0], 1);
}

// The rows of a thread block, [begin, begin + n_rows) of a matrix, and the thread's position in its team.
struct GemvBlock {
  int matrix = 0, begin, n_rows;
  int team, column;  // the thread's team, and its index in the team
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

// The row sums of a pass. Warps store their sums in shared memory. Thread t then adds the sums of row t to `add` or, in
// later passes over the columns, to y.
struct PassSums {
  float* warp_sums;  // [pass_rows, row_warps]
  float* y;
  float initial = 0;
  int row_warps;
  bool has_row;

  LB_DEVICE PassSums(const Gemv& p, const GemvBlock& block, int x_row, int pass, int pass_end, bool continues)
      : warp_sums(dynamic_shared<float>()), row_warps(p.row_threads / 32), has_row(thread_id() < pass_end - pass) {
    const Linear& op = p.group.products[block.matrix];
    y = op.y + long(x_row) * op.n_out + block.begin + pass + thread_id();
    const float* add = continues ? y : op.add != nullptr ? op.add + (y - op.y) : nullptr;
    if (has_row && add != nullptr) initial = *add;
  }
  // Stores the warp's sums of eight rows of its team, starting at `row`.
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

// kPieces: pieces of a row per thread. kBatch: rows in flight.
template <class Format, int kPieces, int kBatch>
LB_DEVICE void gemv(const Gemv& p) {
  static_assert(8 % kBatch == 0);
  dependents_may_launch();
  const GemvBlock block(p);
  for (int first_piece = 0; first_piece < p.row_pieces; first_piece += kPieces * p.row_threads) {
    const int piece = first_piece + block.column;
    typename Format::Rows rows(p, block.matrix, block.begin + block.team, piece);
    typename Format::Piece pieces[kBatch][kPieces] = {};
    int next = block.team;  // row to load
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
      PassSums sums(p, block, block_id_y(), pass, pass_end, first_piece > 0);
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
      block_barrier();  // the next pass overwrites the sums
    }
  }
}

// For several rows of x and blocks of at most eight rows of weights per team, which are read once and stay in
// registers. The thread's pieces cover the row, and sums have the order of gemv() with as many pieces.
template <class Format, int kPieces>
LB_DEVICE void gemv_rows(const Gemv& p) {
  constexpr int kRows = kGemvRowsOuts;
  dependents_may_launch();
  const GemvBlock block(p);
  const int piece = block.column;
  typename Format::Rows rows(p, block.matrix, block.begin + block.team, piece);
  typename Format::Piece pieces[kRows][kPieces] = {};
  LB_UNROLL
  for (int i = 0; i < kRows; ++i) {
    if (block.team + i * p.n_teams >= block.n_rows) break;
    LB_UNROLL
    for (int k = 0; k < kPieces; ++k)
      if (piece + k * p.row_threads < p.row_pieces) pieces[i][k] = rows.read(k * p.row_threads);
    rows.advance(p);
  }
  wait_for_previous();
  for (int x_row = 0; x_row < p.group.products[0].rows; ++x_row) {
    PassSums sums(p, block, x_row, 0, block.n_rows, false);
    typename Format::X x[kPieces];
    LB_UNROLL
    for (int k = 0; k < kPieces; ++k)
      if (piece + k * p.row_threads < p.row_pieces) x[k].read(p, x_row, piece + k * p.row_threads);
    float total[kRows] = {};
    LB_UNROLL
    for (int i = 0; i < kRows; ++i) {
      LB_UNROLL
      for (int k = 0; k < kPieces; ++k) total[i] += Format::dot(pieces[i][k], x[k], piece);
    }
    sums.store_sums(p, block, block.team, total);
    sums.finish();
    block_barrier();  // the next row overwrites the sums
  }
}

}  // namespace lb::gpu
