// The words of matrix.h and matrix_chain.h for chips whose matrix instruction is mma.m8n8k4 (sm_70): an 8x8x4 product
// in each quad pair, lanes 4q to 4q + 3 with lanes 4q + 16 to 4q + 19. Quad pair q computes the rows of C of parity
// q % 2, so that eight consecutive lanes load eight different rows of A, and the columns of half q / 2. With
// r = lane % 4 + lane / 16 * 4, a register has two consecutive values:
//   A             r[w] is (2r + q % 2, 2w)
//   B             r[w] is (r + q / 2 * 8, 2w)                                                       B is [n, k]
//   B transposed  r[w] is (q / 2 * 8 + lane / 16 * 4 + w % 2 * 2, w / 2 * 4 + lane % 4), and the next n
//   C             v[i] is row 2 (lane / 16 * 4 + lane % 2 + i / 2 % 2 * 2) + q % 2,
//                 column q / 2 * 8 + i / 4 * 4 + lane / 2 % 2 * 2 + i % 2
// The vendor's quads.h declares multiply_quads(sums, two registers of A, two registers of B, is_transposed).
#pragma once

#include <stdint.h>

namespace lb::gpu {

inline constexpr bool kHasBf16Matrix = false;

template <class T>
struct FragmentA {
  uint32_t r[8];
};
template <class T>
struct FragmentB {
  uint32_t r[8];
  bool is_transposed;  // a constant after inlining
};
struct FragmentC {
  float v[8];
};

LB_DEVICE void fill(FragmentC& c, float value) {
  LB_UNROLL
  for (int i = 0; i < 8; ++i) c.v[i] = value;
}

LB_DEVICE int quad_row() { return lane() % 4 + lane() / 16 * 4; }
LB_DEVICE int quad_row_a() { return quad_row() * 2 + lane() / 4 % 2; }
LB_DEVICE int quad_half() { return lane() / 8 % 2; }  // of the columns

// Rows start 16-byte aligned: stride counts values and is a multiple of 8.
LB_DEVICE void load_quad_row(uint32_t (&r)[8], const void* from, int row, int stride) {
  LB_UNROLL
  for (int i = 0; i < 2; ++i) {
    const u32x4 words = load<u32x4>(static_cast<const char*>(from) + 2 * row * stride + 16 * i);
    LB_UNROLL
    for (int j = 0; j < 4; ++j) r[4 * i + j] = words[j];
  }
}
template <class T>
LB_DEVICE void load(FragmentA<T>& a, const void* from, int stride) {
  load_quad_row(a.r, from, quad_row_a(), stride);
}
template <class T>
LB_DEVICE void load(FragmentB<T>& b, const void* from, int stride) {
  load_quad_row(b.r, from, quad_row() + quad_half() * 8, stride);
  b.is_transposed = false;
}

LB_DEVICE void multiply(FragmentC& c, const FragmentA<f16>& a, const FragmentB<f16>& b) {
  LB_UNROLL
  for (int i = 0; i < 8; i += 2) multiply_quads(c.v, a.r + i, b.r + i, b.is_transposed);
}

LB_DEVICE constexpr int quad_column(int i) { return i / 4 * 4 + i % 2; }  // of v[i], less column_of_lane()
LB_DEVICE int column_of_lane() { return quad_half() * 8 + lane() / 2 % 2 * 2; }

inline constexpr int kLaneRows = 2;  // rows of C in which a lane has values
LB_DEVICE int lane_row(int i) { return 2 * (lane() / 16 * 4 + lane() % 2 + 2 * i) + lane() / 4 % 2; }

// Calls visit(i, column, value) for each value of the lane; i counts the lane's rows.
template <class Visit>
LB_DEVICE void for_each_row(FragmentC& c, Visit&& visit) {
  LB_UNROLL
  for (int i = 0; i < 8; ++i) visit(i / 2 % 2, column_of_lane() + quad_column(i), c.v[i]);
}
template <class Visit>
LB_DEVICE void for_each(FragmentC& c, Visit&& visit) {
  for_each_row(c, [&](int i, int column, float& value) { visit(lane_row(i), column, value); });
}

// Reductions over the lanes that share a row.
LB_DEVICE float row_max(float v) {
  v = max(v, shuffle_xor(v, 8));
  return max(v, shuffle_xor(v, 2));
}
LB_DEVICE float row_sum(float v) {
  v += shuffle_xor(v, 8);
  return v + shuffle_xor(v, 2);
}

// Same as load(), from shared memory.
template <class T>
LB_DEVICE void load_shared(FragmentA<T>& a, const void* from, int stride) {
  load(a, from, stride);
}
template <class T>
LB_DEVICE void load_shared(FragmentB<T>& b, const void* from, int stride) {
  load(b, from, stride);
}
// Loads B from its transpose [16 k, 16 n] in shared memory, n contiguous.
template <class T>
LB_DEVICE void load_shared_transposed(FragmentB<T>& b, const void* from, int stride) {
  const f16* first = static_cast<const f16*>(from) + lane() % 4 * stride + quad_half() * 8 + lane() / 16 * 4;
  LB_UNROLL
  for (int i = 0; i < 4; ++i) {
    const u32x2 words = load<u32x2>(first + 4 * i * stride);
    b.r[2 * i] = words[0];
    b.r[2 * i + 1] = words[1];
  }
  b.is_transposed = true;
}

LB_DEVICE uint32_t pack_pair(float lo, float hi, f16) { return __builtin_bit_cast(uint32_t, to_f16x2(lo, hi)); }

LB_DEVICE void convert(FragmentA<f16>& to, const FragmentA<bf16>& from) {
  LB_UNROLL
  for (int i = 0; i < 8; ++i)
    to.r[i] = pack_pair(quant::float_of(from.r[i] << 16), quant::float_of(from.r[i] & 0xffff0000u), f16{});
}

// Rounds C to operand A of the next product, through scratch [16, 24] in shared memory, private to the warp.
inline constexpr bool kSumIsOperand = false;  // a lane's values of C are not its values of A
template <class T>
LB_DEVICE void to_operand(FragmentA<T>& a, FragmentC& c, T* scratch) {
  warp_barrier();  // earlier reads of the scratch are done
  LB_UNROLL
  for (int i = 0; i < 8; i += 2)
    store(scratch + lane_row(i / 2 % 2) * 24 + column_of_lane() + quad_column(i), pack_pair(c.v[i], c.v[i + 1], T{}));
  warp_barrier();
  load(a, scratch, 24);
}

}  // namespace lb::gpu
