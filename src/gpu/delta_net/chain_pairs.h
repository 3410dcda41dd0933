// Device functions of gated_delta_chain_pairs_kernel: keys and queries as operands, and the blockwise inverse of a
// triangular matrix. Threads: kChainPairThreads.
#pragma once

#include "gpu/delta_net/chain_work.h"

namespace lb::gpu {

inline constexpr int kMatrixStride = kMaxTree + 4;  // row stride of a square fp32 matrix in shared memory
inline constexpr int kSumStride = 32 + 4;
static_assert(kChainPairsBytes == 2 * KeyRows::kBytes);
static_assert((3 * kMaxTree * kMatrixStride + 32 * kSumStride) * int(sizeof(float)) <= kChainPairsBytes);

struct alignas(16) ChainGates {
  float g[kMaxTree], beta[kMaxTree], cs[kMaxTree];
};

// Splits a chunk's keys and queries into operands, in shared memory (keys, then queries) and in the scratch memory,
// with zeros beyond the last row. The last chunk's keys also go to the pending buffer.
LB_DEVICE void split_rows(const DeltaWork& p, int chunk, int k_head, unsigned char* memory) {
  const GatedDelta& op = p.op;
  constexpr int kUnits = kChainDk / 4, kEach = 2 * kMaxTree * kUnits / kChainPairThreads;
  const int rows = rows_of_chunk(op, chunk);
  const bool is_last = chunk == n_chunks_of(op) - 1;
  float* pending = keys_in(op, buffer_after(op, chunk + 1));
  bf16* work = rows_work(p, chunk, k_head);
  LB_UNROLL_BY(8)
  for (int i = 0; i < kEach; ++i) {
    const int unit = thread_id() + i * kChainPairThreads, column = unit % kUnits * 4, row = unit / kUnits % kMaxTree;
    const bool is_key = unit < kMaxTree * kUnits;
    f32x4 x = {};
    if (row < rows)
      x = load<f32x4>((is_key ? op.k : op.q) + (long(chunk) * kMaxTree + row) * op.row_stride + k_head * kChainDk +
                      column);
    if (is_last && is_key && row < rows) store(pending + (long(row) * op.n_k_heads + k_head) * kChainDk + column, x);
    Vec<bf16, 4> high, low;
    part(x, high, low);
    bf16* to = KeyRows(memory + (is_key ? 0 : KeyRows::kBytes)).at(row, column);
    store(to, high);
    store(to + KeyRows::kLow, low);
    bf16* out = work + (is_key ? 0 : 2 * kRowsValues) + row * kChainDk + column;
    store(out, high);
    store(out + kRowsValues, low);
  }
}

// Writes four values of a matrix [64, 64], times factor, as high and low parts.
LB_DEVICE void write_lower(bf16* to, const float* from, int unit, const f32x4& factor) {
  const int row = unit / 16, column = unit % 16 * 4;
  f32x4 x = load<f32x4>(from + row * kMatrixStride + column);
  LB_UNROLL
  for (int i = 0; i < 4; ++i) x[i] *= factor[i];
  Vec<bf16, 4> high, low;
  part(x, high, low);
  store(to + row * kMaxTree + column, high);
  store(to + kPairValues + row * kMaxTree + column, low);
}
LB_DEVICE bool is_lower(int unit) { return unit % 16 / 4 <= unit / 16 / 16; }
inline constexpr int kUnits = kMaxTree * kMaxTree / 4;

// Inverts the 16x16 diagonal blocks of I + a: one column per thread, 64 threads.
LB_DEVICE void invert_blocks(const float* a, float* inverse) {
  const int block = thread_id() / 16 * 16, column = thread_id() % 16;
  float x[16];
  LB_UNROLL
  for (int i = 0; i < 16; ++i) {
    x[i] = i == column ? 1.0f : 0.0f;
    LB_UNROLL
    for (int l = 0; l < i; ++l) x[i] = fma(-load<float>(a + (block + i) * kMatrixStride + block + l), x[l], x[i]);
    store(inverse + (block + i) * kMatrixStride + block + column, x[i]);
  }
}

// Zeroes the upper right 16x16 block of both 32x32 diagonal blocks. Called by threads from `first` on.
LB_DEVICE void clear_above(float* inverse, int first) {
  for (int i = thread_id() - first; i < 2 * 16 * 16; i += kChainPairThreads - first)
    store(inverse + (i / 256 * 32 + i / 16 % 16) * kMatrixStride + i / 256 * 32 + 16 + i % 16, 0.0f);
}

// y = sign * b x, all [kSize, kSize]. A thread computes every 16th row and column.
template <int kSize>
LB_DEVICE void multiply_blocks(const float* b, int b_stride, const float* x, int x_stride, float* y, int y_stride,
                               float sign) {
  constexpr int kEach = kSize / 16;
  const int row = thread_id() / 16, column = thread_id() % 16;
  float sums[kEach][kEach] = {};
  LB_UNROLL_BY(4)
  for (int l = 0; l < kSize; ++l) {
    float left[kEach], right[kEach];
    LB_UNROLL
    for (int i = 0; i < kEach; ++i) {
      left[i] = load<float>(b + (row + 16 * i) * b_stride + l);
      right[i] = load<float>(x + l * x_stride + column + 16 * i);
    }
    LB_UNROLL
    for (int i = 0; i < kEach; ++i) {
      LB_UNROLL
      for (int j = 0; j < kEach; ++j) sums[i][j] = fma(left[i], right[j], sums[i][j]);
    }
  }
  LB_UNROLL
  for (int i = 0; i < kEach; ++i) {
    LB_UNROLL
    for (int j = 0; j < kEach; ++j) store(y + (row + 16 * i) * y_stride + column + 16 * j, sign * sums[i][j]);
  }
}

// Inverts the blocks below the diagonal, by doubling: the inverse of [A 0; C B] has -B^-1 C A^-1 at C's position. First
// for blocks of 16, then of 32. sums: scratch [32, kSumStride].
LB_DEVICE void invert_below(const float* a, float* inverse, float* sums) {
  const auto below = [](int first, int size) { return (first + size) * kMatrixStride + first; };
  const auto diagonal = [](int first) { return first * (kMatrixStride + 1); };
  LB_UNROLL
  for (int first = 0; first < kMaxTree; first += 32)
    multiply_blocks<16>(a + below(first, 16), kMatrixStride, inverse + diagonal(first), kMatrixStride,
                        sums + first / 2 * kSumStride, kSumStride, 1);
  block_barrier();
  LB_UNROLL
  for (int first = 0; first < kMaxTree; first += 32)
    multiply_blocks<16>(inverse + diagonal(first + 16), kMatrixStride, sums + first / 2 * kSumStride, kSumStride,
                        inverse + below(first, 16), kMatrixStride, -1);
  block_barrier();
  multiply_blocks<32>(a + below(0, 32), kMatrixStride, inverse, kMatrixStride, sums, kSumStride, 1);
  block_barrier();
  multiply_blocks<32>(inverse + diagonal(32), kMatrixStride, sums, kSumStride, inverse + below(0, 32), kMatrixStride,
                      -1);
  block_barrier();
}

// Dot products of 16 rows of `rows`, from row 16 (kBlocks - 1) on, with the keys of the first kBlocks blocks of 16,
// i.e. up to the rows' own block.
template <int kBlocks>
LB_DEVICE void multiply_rows(FragmentC (&products)[4], const KeyRows& rows, const KeyRows& keys) {
  LB_UNROLL
  for (int j = 0; j < kBlocks; ++j) fill(products[j], 0);
  LB_UNROLL_BY(2)
  for (int d = 0; d < kChainDk; d += 16) {
    OperandA a;
    read(a, rows, 16 * (kBlocks - 1), d);
    LB_UNROLL
    for (int j = 0; j < kBlocks; ++j) {
      OperandB b;
      read(b, keys, 16 * j, d);
      add_product(products[j], a, b);
    }
  }
}

}  // namespace lb::gpu
