// The body of the mat-vec: y = w x (+ add) for one row of x and one of the products of a group.
//
// A block has one product and a contiguous share of its rows (LinearVec::first_block). Columns stay, rows pass:
// row_threads threads share a weight row, each holds the x of its own pieces of 16 bytes in registers and meets the
// same pieces of row after row; the block's teams of row_threads take turns over its rows. Reading runs kBatch rows
// ahead in registers, and the first batch is asked for before the previous kernel has ended: weights never depend on
// it. Sums of a row end in shared memory, one from each warp, so the loop has no barrier. The order of additions
// depends on the shape and the launch alone. Grid: x shares the products' rows, y the rows of x. Bound: bandwidth, the
// bytes of the weights (bytes_of in launch/linear.h). Notebook: docs/kernels/matvec.md.
#pragma once

#include "launch/linear_shape.h"

namespace lb::gpu {

// v[i] += the other half's v[i], each half of the lanes keeping one half of the values: a step of sum_eight.
template <int kHalf>
LB_DEVICE void fold(float (&v)[8]) {
  const bool is_upper = lane() & 4 * kHalf;
  LB_UNROLL
  for (int i = 0; i < kHalf; ++i) {
    const float lower = v[i], upper = v[i + kHalf];
    v[i] = (is_upper ? upper : lower) + shuffle_xor(is_upper ? lower : upper, 4 * kHalf);
  }
}

// Sums eight values over the warp; lane l gets that of v[l / 4]. Exchanging halves costs 9 shuffles instead of 40.
LB_DEVICE float sum_eight(float (&v)[8]) {
  fold<4>(v);
  fold<2>(v);
  fold<1>(v);
  v[0] += shuffle_xor(v[0], 2);
  return v[0] + shuffle_xor(v[0], 1);
}

// What this block has to do. Constant indices keep the parameters where they are; the output is looked up again when it
// is written, so that it holds no registers meanwhile.
struct Share {
  const void* w;
  int n_out, block, n_blocks;
};
struct Output {
  const float* add;
  float* y;
};

LB_DEVICE Share share_of(const LinearVec& p) {
  Share share = {p.group.products[0].w, p.group.products[0].n_out, block_id(), p.first_block[1]};
  LB_UNROLL
  for (int i = 1; i < kMaxProducts; ++i)
    if (i < p.group.n && block_id() >= p.first_block[i])
      share = {p.group.products[i].w, p.group.products[i].n_out, block_id() - p.first_block[i],
               p.first_block[i + 1] - p.first_block[i]};
  return share;
}

LB_DEVICE Output output_of(const LinearVec& p) {
  Output out = {p.group.products[0].add, p.group.products[0].y};
  LB_UNROLL
  for (int i = 1; i < kMaxProducts; ++i)
    if (i < p.group.n && block_id() >= p.first_block[i]) out = {p.group.products[i].add, p.group.products[i].y};
  return out;
}

// kPieces of a row a thread holds at once; kBatch rows are on their way at once.
template <class Format, int kPieces, int kBatch>
LB_DEVICE void linear_vec(const LinearVec& p) {
  static_assert(8 % kBatch == 0);
  const Share share = share_of(p);
  const int n_pieces = (p.group.products[0].n_in + Format::kValues - 1) / Format::kValues;
  const int row_threads = p.row_threads, row_warps = row_threads / 32, n_teams = n_threads() / row_threads;
  const int team = thread_id() / row_threads, column = thread_id() % row_threads;
  const int begin = int(long(share.n_out) * share.block / share.n_blocks);
  const int n_rows = int(long(share.n_out) * (share.block + 1) / share.n_blocks) - begin;
  const int n_steps = (n_rows + n_teams - 1) / n_teams;
  const int pass_steps = kVecPassRows / n_teams / 8 * 8;
  float* sums = dynamic_shared<float>();  // [pass_steps, n_teams, row_warps]

  for (int first_piece = 0; first_piece < n_pieces; first_piece += kPieces * row_threads) {
    const int piece = first_piece + column;
    typename Format::Rows rows(share.w, share.n_out, p.group.products[0].n_in, begin + team, piece);
    typename Format::Piece pieces[kBatch][kPieces] = {};
    int left = (n_rows - team + n_teams - 1) / n_teams;  // rows to read
    const auto read = [&](typename Format::Piece(&into)[kPieces]) {
      if (left-- <= 0) return;
      LB_UNROLL
      for (int k = 0; k < kPieces; ++k)
        if (piece + k * row_threads < n_pieces) into[k] = rows.read(k * row_threads);
      rows.advance(n_teams);
    };
    LB_UNROLL
    for (int b = 0; b < kBatch; ++b) read(pieces[b]);
    if (first_piece == 0) {
      dependents_may_launch();
      wait_for_previous();
    }
    typename Format::X x[kPieces];
    LB_UNROLL
    for (int k = 0; k < kPieces; ++k)
      if (piece + k * row_threads < n_pieces) x[k].read(p, block_id_y(), piece + k * row_threads);

    for (int pass = 0; pass < n_steps; pass += pass_steps) {
      const int pass_end = min(pass + pass_steps, n_steps);
      for (int step = pass; step < pass_end; step += 8) {
        float total[8];
        LB_UNROLL
        for (int i = 0; i < 8; ++i) {
          total[i] = 0;
          LB_UNROLL
          for (int k = 0; k < kPieces; ++k) total[i] += Format::dot(pieces[i % kBatch][k], x[k], piece);
          read(pieces[i % kBatch]);
        }
        const float sum = sum_eight(total);
        const int slot = (step - pass + lane() / 4) * n_teams + team;
        if (lane() % 4 == 0) sums[slot * row_warps + warp() % row_warps] = sum;
      }
      block_barrier();
      for (int i = thread_id(); i < min((pass_end - pass) * n_teams, n_rows - pass * n_teams); i += n_threads()) {
        float sum = 0;
        for (int w = 0; w < row_warps; ++w) sum += sums[i * row_warps + w];
        const Output out = output_of(p);
        const long at = long(block_id_y()) * share.n_out + begin + pass * n_teams + i;
        const float before = first_piece > 0 ? out.y[at] : out.add != nullptr ? out.add[at] : 0.0f;
        out.y[at] = before + sum;
      }
      block_barrier();  // the sums are read before the next pass writes them
    }
  }
}

}  // namespace lb::gpu
