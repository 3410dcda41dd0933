// The words of byte_matrix.h for chips without a matrix instruction for bytes (sm_70), by dp4a. A lane computes two
// rows of A by two rows of B; q = lane / 4 % 4, and row a = quad_row_a() is the row of A in its FragmentA:
//   ByteHalf  r[i] is row a for i < 4, row a ^ 1 from 4 on, bytes [4 (i % 4), + 4)
//   BytesB    rows 2q and 2q + 1, which the product reads from shared memory
//   ByteSums  v[2i + j] is row a ^ i of A, row 2q + j of B
#pragma once

#include <stdint.h>

namespace lb::gpu {

inline constexpr int kByteRows = 8;

struct ByteHalf {  // 16 rows x 16 bytes of A
  uint32_t r[8];
};
struct BytesB {  // kByteRows rows x 32 bytes
  const char* from;
  int stride;
};
struct ByteSums {
  int v[4];
};

// Per-row tables in the form that a lane needs. SumRowsA and SumRowsB: entries for the rows of its sums. OperandRows:
// entries for the rows of A in its operand registers.
template <class T>
struct SumRowsA {
  T v[2];
};
struct SumRowsB {
  float v[2];
};
template <class T>
struct OperandRows {
  T v[2];
};
template <class T>
LB_DEVICE void load(SumRowsA<T>& rows, const T* from) {
  LB_UNROLL
  for (int i = 0; i < 2; ++i) rows.v[i] = load<T>(from + (quad_row_a() ^ i));
}
LB_DEVICE void load(SumRowsB& rows, const float* from) {
  const f32x2 v = load<f32x2>(from + lane() / 4 % 4 * 2);
  rows.v[0] = v[0];
  rows.v[1] = v[1];
}
template <class T>
LB_DEVICE void load(OperandRows<T>& rows, const void* from, int stride) {
  LB_UNROLL
  for (int i = 0; i < 2; ++i) rows.v[i] = load<T>(static_cast<const char*>(from) + (quad_row_a() ^ i) * stride);
}
LB_DEVICE constexpr int operand_row(int i) { return i / 4; }   // index into OperandRows for r[i] of a ByteHalf
LB_DEVICE constexpr int operand_word(int i) { return i % 4; }  // index of r[i]'s four bytes in the row's 16
// Calls visit(row of A, row of B, index into SumRowsA, index into SumRowsB, index of the sum) for each sum of the lane.
template <class Visit>
LB_DEVICE void for_each_sum(Visit&& visit) {
  LB_UNROLL
  for (int i = 0; i < 4; ++i) visit(quad_row_a() ^ (i / 2), lane() / 4 % 4 * 2 + i % 2, i / 2, i % 2, i);
}

// Loads 16 rows of 16 bytes from shared memory. Rows start 16-byte aligned; stride is in bytes.
LB_DEVICE void load(ByteHalf& h, const void* from, int stride) {
  LB_UNROLL
  for (int i = 0; i < 2; ++i) {
    const u32x4 words = load<u32x4>(static_cast<const char*>(from) + (quad_row_a() ^ i) * stride);
    LB_UNROLL
    for (int j = 0; j < 4; ++j) h.r[4 * i + j] = words[j];
  }
}
// Loads 16 rows of 32 bytes.
LB_DEVICE void load(ByteHalf (&h)[2], const void* from, int stride) {
  load(h[0], from, stride);
  load(h[1], static_cast<const char*>(from) + 16, stride);
}
// Takes kByteRows rows of 64 bytes, which must stay until they are multiplied.
LB_DEVICE void load(BytesB (&b)[2], const void* from, int stride) {
  const char* row = static_cast<const char*>(from) + lane() / 4 % 4 * 2 * stride;
  b[0] = {row, stride};
  b[1] = {row + 32, stride};
}

LB_DEVICE void add_products(ByteSums& c, const ByteHalf& a, const BytesB& b, int half) {
  LB_UNROLL
  for (int j = 0; j < 2; ++j) {
    const u32x4 words = load<u32x4>(b.from + j * b.stride + 16 * half);
    LB_UNROLL
    for (int k = 0; k < 4; ++k) {
      LB_UNROLL
      for (int i = 0; i < 2; ++i) c.v[2 * i + j] = dot4(int(a.r[4 * i + k]), int(words[k]), c.v[2 * i + j]);
    }
  }
}
// Product over 16 bytes of k; `half` selects the half of b.
LB_DEVICE ByteSums multiply_half(const ByteHalf& a, const BytesB& b, int half, int start) {
  ByteSums c = {{start, start, start, start}};
  add_products(c, a, b, half);
  return c;
}
// Product over 32 bytes of k.
LB_DEVICE ByteSums multiply(const ByteHalf& a0, const ByteHalf& a1, const BytesB& b, int start) {
  ByteSums c = multiply_half(a0, b, 0, start);
  add_products(c, a1, b, 1);
  return c;
}

// expand() converts 16 x 16 bytes to a 16-bit fragment: number * scale - offset, with each row's scale and offset,
// rounded once. numbers(word) are the numbers of four bytes. It keeps the order of k.
LB_DEVICE constexpr int expanded_index(int k) { return k; }

template <class T, class Numbers>
LB_DEVICE void expand(FragmentA<T>& a, const ByteHalf& h, const OperandRows<f32x2>& scale, Numbers&& numbers) {
  LB_UNROLL
  for (int i = 0; i < 4; ++i) {
    f32x4 v = numbers(h.r[i]);
    LB_UNROLL
    for (int j = 0; j < 4; ++j) v[j] = fma(v[j], scale.v[0][0], -scale.v[0][1]);
    a.r[2 * i] = pack_pair(v[0], v[1], T{});
    a.r[2 * i + 1] = pack_pair(v[2], v[3], T{});
  }
}

}  // namespace lb::gpu
