// What a chain of two products needs: operands in shared memory by ldmatrix, also stored the other way around, the rows
// of a sum, and a sum as the operand of the next product. Layout of the registers: matrix.h.
#pragma once

#include <stdint.h>

namespace lb::gpu {

// Four 8x8 matrices whose rows the lanes name, eight lanes a matrix.
LB_DEVICE void load_matrices(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(uint32_t(__cvta_generic_to_shared(row))));
}
LB_DEVICE void load_matrices_transposed(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(uint32_t(__cvta_generic_to_shared(row))));
}

LB_DEVICE void load_matrices(uint32_t& first, uint32_t& second, const void* row) {  // two, by lanes 0 to 15
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(first), "=r"(second)
               : "r"(uint32_t(__cvta_generic_to_shared(row))));
}

// As load(), from shared memory.
template <class T>
LB_DEVICE void load_shared(FragmentA<T>& a, const T* from, int stride) {
  load_matrices(a.r, from + lane() % 16 * stride + lane() / 16 * 8);
}
// Of eight rows; the others are zero.
template <class T>
LB_DEVICE void load_shared_8_rows(FragmentA<T>& a, const T* from, int stride) {
  a.r[1] = a.r[3] = 0;
  load_matrices(a.r[0], a.r[2], from + lane() % 8 * stride + lane() / 8 % 2 * 8);
}
template <class T>
LB_DEVICE void load_shared(FragmentB<T>& b, const T* from, int stride) {
  load_matrices(b.r, from + (lane() % 8 + lane() / 16 * 8) * stride + lane() / 8 % 2 * 8);
}
// B from its transpose in shared memory: [16 k, 16 n], n contiguous.
template <class T>
LB_DEVICE void load_shared_transposed(FragmentB<T>& b, const T* from, int stride) {
  load_matrices_transposed(b.r, from + lane() % 16 * stride + lane() / 16 * 8);
}

inline constexpr int kLaneRows = 2;  // rows of C that a lane has values of
LB_DEVICE int lane_row(int i) { return lane() / 4 + 8 * i; }

// visit(i, column, value): in the i-th of the lane's rows.
template <class Visit>
LB_DEVICE void for_each_row(FragmentC& c, Visit&& visit) {
  LB_UNROLL
  for (int i = 0; i < 8; ++i) visit(i / 2 % 2, i / 4 * 8 + lane() % 4 * 2 + i % 2, c.v[i]);
}

// Over the lanes that have values of the same rows.
LB_DEVICE float row_max(float v) {
  v = max(v, shuffle_xor(v, 2));
  return max(v, shuffle_xor(v, 1));
}
LB_DEVICE float row_sum(float v) {
  v += shuffle_xor(v, 2);
  return v + shuffle_xor(v, 1);
}

#if __CUDA_ARCH__ >= 800
LB_DEVICE uint32_t pack(float lo, float hi, f16) {
  uint32_t pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(hi), "f"(lo));
  return pair;
}
LB_DEVICE uint32_t pack(float lo, float hi, bf16) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(hi), "f"(lo));
  return pair;
}
#else
LB_DEVICE uint32_t pack(float lo, float hi, f16) { return __builtin_bit_cast(uint32_t, to_f16x2(lo, hi)); }
#endif

// C, rounded.
inline constexpr bool kSumIsOperand = true;  // a lane has the same values of both, by the layout of mma
template <class T>
LB_DEVICE void sum_as_operand(FragmentA<T>& a, const FragmentC& c) {
  LB_UNROLL
  for (int i = 0; i < 4; ++i) a.r[i] = pack(c.v[2 * i], c.v[2 * i + 1], T{});
}
// The scratch is for chips whose operands lie in other lanes than their sums.
template <class T>
LB_DEVICE void to_operand(FragmentA<T>& a, FragmentC& c, T*) {
  sum_as_operand(a, c);
}

#if __CUDA_ARCH__ >= 900
LB_DEVICE void store_matrices(void* row, const uint32_t (&r)[4]) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(uint32_t(__cvta_generic_to_shared(row))),
      "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
      : "memory");
}
#endif

// C as two numbers each, high + low, into shared memory.
template <class T>
LB_DEVICE void store_parts(FragmentC& c, T* high, T* low, int stride) {
  uint32_t parts[2][4];
  LB_UNROLL
  for (int i = 0; i < 4; ++i) {
    parts[0][i] = pack(c.v[2 * i], c.v[2 * i + 1], T{});
    parts[1][i] = pack(c.v[2 * i] - to_f32(T{uint16_t(parts[0][i])}),
                       c.v[2 * i + 1] - to_f32(T{uint16_t(parts[0][i] >> 16)}), T{});
  }
  const auto put = [&](T* to, const uint32_t (&r)[4]) {
#if __CUDA_ARCH__ >= 900
    store_matrices(to + lane() % 16 * stride + lane() / 16 * 8, r);
#else
    LB_UNROLL
    for (int i = 0; i < 4; ++i) store(to + (lane() / 4 + i % 2 * 8) * stride + i / 2 * 8 + lane() % 4 * 2, r[i]);
#endif
  };
  put(high, parts[0]);
  put(low, parts[1]);
}

}  // namespace lb::gpu
