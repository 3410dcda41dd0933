// Device functions of gated_delta_chain_kernel: shared memory, tiles copied ahead, products with triangular matrices.
#pragma once

#include "gpu/delta_net/chain_work.h"

namespace lb::gpu {

inline constexpr int kValueStride = kChainColumns + 4;

// Layout of the dynamic shared memory.
struct ChainMemory {
  static constexpr int kGateBytes = 2 * kMaxTree * int(sizeof(float));
  static constexpr int kValueBytes = kMaxTree * kValueStride * int(sizeof(float));
  static constexpr int kQueries = 2 * KeyRows::kBytes, kInverse = kQueries + KeyRows::kBytes,
                       kPairs = kInverse + Square::kBytes, kValues = kPairs + Square::kBytes,
                       kGates = kValues + kValueBytes, kState = kGates + 2 * kGateBytes,
                       kResidual = kState + State::kBytes, kDelta = kResidual + ColumnRows::kBytes,
                       kWeighted = kDelta + ColumnRows::kBytes, kAll = kWeighted + ColumnRows::kBytes;
  static_assert(kAll == kChainBytes);

  unsigned char* memory;
  LB_DEVICE KeyRows keys(int chunk) const { return KeyRows(memory + chunk % 2 * KeyRows::kBytes); }
  LB_DEVICE KeyRows queries() const { return KeyRows(memory + kQueries); }
  LB_DEVICE Square inverse() const { return Square(memory + kInverse); }
  LB_DEVICE Square pairs() const { return Square(memory + kPairs); }
  LB_DEVICE float* values() const { return reinterpret_cast<float*>(memory + kValues); }
  LB_DEVICE float* gates(int chunk) const { return reinterpret_cast<float*>(memory + kGates + chunk % 2 * kGateBytes); }
  LB_DEVICE State state() const { return State(memory + kState); }
  LB_DEVICE ColumnRows residual() const { return ColumnRows(memory + kResidual); }
  LB_DEVICE ColumnRows delta() const { return ColumnRows(memory + kDelta); }
  LB_DEVICE ColumnRows weighted() const { return ColumnRows(memory + kWeighted); }
};

// Unrolled, so that each address is one base plus a constant.
LB_DEVICE void copy_rows(const KeyRows& to, const bf16* from) {
  constexpr int kPieces = kChainDk / 8, kRowsAtOnce = kChainThreads / kPieces;
  const int own_row = thread_id() / kPieces, column = thread_id() % kPieces * 8;
  bf16* own_to = to.at(own_row, column);
  const bf16* own_from = from + own_row * kChainDk + column;
  LB_UNROLL
  for (int low = 0; low < 2; ++low) {
    LB_UNROLL
    for (int row = 0; row < kMaxTree; row += kRowsAtOnce)
      copy_async<16>(own_to + low * KeyRows::kLow + row * KeyRows::kStride,
                     own_from + low * kRowsValues + row * kChainDk);
  }
}
LB_DEVICE void copy_lower(const Square& to, const bf16* from) {
  constexpr int kPieces = kMaxTree / 8;
  constexpr int kRowsAtOnce = kChainThreads / kPieces;
  const int own_row = thread_id() / kPieces, column = thread_id() % kPieces * 8;
  bf16* own_to = to.at(own_row, column);
  const bf16* own_from = from + own_row * kMaxTree + column;
  LB_UNROLL
  for (int row = 0; row < kMaxTree; row += kRowsAtOnce) {
    if (column / 16 > (own_row + row) / 16) continue;
    copy_async<16>(own_to + row * Square::kStride, own_from + row * kMaxTree);
    copy_async<16>(own_to + Square::kLow + row * Square::kStride, own_from + kPairValues + row * kMaxTree);
  }
}

// Issues asynchronous copies of a chunk's tiles, each as soon as its buffer is free. Each call is one commit group.
struct ChainTiles {
  const DeltaWork& p;
  const ChainMemory& memory;
  int v_head, k_head, first_column, n_chunks;

  LB_DEVICE void keys(int chunk) const {
    if (chunk < n_chunks) {
      copy_rows(memory.keys(chunk), rows_work(p, chunk, k_head));
      if (thread_id() < ChainMemory::kGateBytes / 16)
        copy_async<16>(memory.gates(chunk) + 4 * thread_id(),
                       gates_work(pairs_work(p, chunk, v_head)) + 4 * thread_id());
    }
    copy_commit();
  }
  LB_DEVICE void queries_and_values(int chunk) const {
    if (chunk < n_chunks) {
      const GatedDelta& op = p.op;
      copy_rows(memory.queries(), rows_work(p, chunk, k_head) + 2 * kRowsValues);
      constexpr int kPieces = kChainColumns / 4, kRowsAtOnce = kChainThreads / kPieces;
      const int own_row = thread_id() / kPieces, column = thread_id() % kPieces * 4;
      float* to = memory.values() + own_row * kValueStride + column;
      const float* from =
          op.v + (long(chunk) * kMaxTree + own_row) * op.row_stride + long(v_head) * op.dv + first_column + column;
      LB_UNROLL
      for (int row = 0; row < kMaxTree; row += kRowsAtOnce) {
        if (own_row + row < rows_of_chunk(op, chunk))
          copy_async<16>(to + row * kValueStride, from + row * op.row_stride);
        else
          store(to + row * kValueStride, f32x4{});
      }
    }
    copy_commit();
  }
  LB_DEVICE void inverse(int chunk) const {
    if (chunk < n_chunks) copy_lower(memory.inverse(), pairs_work(p, chunk, v_head));
    copy_commit();
  }
  LB_DEVICE void pairs(int chunk) const {
    copy_lower(memory.pairs(), pairs_work(p, chunk, v_head) + 2 * kPairValues);
    copy_commit();
  }
};

inline constexpr int kColumnTiles = kChainColumns / 16;
using Sums = FragmentC[kColumnTiles];

// sums += x m^T for the last 16 of m's rows, where m has kBlocks blocks and is lower triangular by blocks. Products
// with a low part have separate accumulators, for shorter dependency chains.
template <int kBlocks>
LB_DEVICE void add_blocks(Sums& sums, const ColumnRows& x, const Square& m) {
  Sums small;
  LB_UNROLL
  for (int c = 0; c < kColumnTiles; ++c) fill(small[c], 0);
  LB_UNROLL
  for (int k = 0; k < kBlocks; ++k) {
    OperandB b;
    read(b, m, 16 * (kBlocks - 1), 16 * k);
    LB_UNROLL
    for (int c = 0; c < kColumnTiles; ++c) {
      OperandA a;
      read(a, x, 16 * c, 16 * k);
      multiply(small[c], a.low, b.high);
      multiply(small[c], a.high, b.low);
      multiply(sums[c], a.high, b.high);
    }
  }
  LB_UNROLL
  for (int c = 0; c < kColumnTiles; ++c) add(sums[c], small[c]);
}
LB_DEVICE void add_lower(Sums& sums, const ColumnRows& x, const Square& m, int block) {
  if (block == 0) add_blocks<1>(sums, x, m);
  if (block == 1) add_blocks<2>(sums, x, m);
  if (block == 2) add_blocks<3>(sums, x, m);
  if (block == 3) add_blocks<4>(sums, x, m);
}

}  // namespace lb::gpu
