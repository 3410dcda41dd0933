// Primitives for two chained products, as in attention: operands from shared memory by ldmatrix, also transposed; row
// reductions of an accumulator; an accumulator as the operand of the next product. Register layout: matrix.h.
#pragma once

#include <stdint.h>

namespace lb::gpu {

// Loads four 8x8 matrices; eight lanes give the row addresses of each matrix.
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

LB_DEVICE void load_matrices(uint32_t& first, uint32_t& second, const void* row) {  // two matrices, rows of lanes 0..15
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(first), "=r"(second)
               : "r"(uint32_t(__cvta_generic_to_shared(row))));
}

// Same as load(), from shared memory.
template <class T>
LB_DEVICE void load_shared(FragmentA<T>& a, const T* from, int stride) {
  load_matrices(a.r, from + lane() % 16 * stride + lane() / 16 * 8);
}
// Loads eight rows; the other eight rows are zero.
template <class T>
LB_DEVICE void load_shared_8_rows(FragmentA<T>& a, const T* from, int stride) {
  a.r[1] = a.r[3] = 0;
  load_matrices(a.r[0], a.r[2], from + lane() % 8 * stride + lane() / 8 % 2 * 8);
}
template <class T>
LB_DEVICE void load_shared(FragmentB<T>& b, const T* from, int stride) {
  load_matrices(b.r, from + (lane() % 8 + lane() / 16 * 8) * stride + lane() / 8 % 2 * 8);
}
// Loads B from its transpose [16 k, 16 n] in shared memory, n contiguous.
template <class T>
LB_DEVICE void load_shared_transposed(FragmentB<T>& b, const T* from, int stride) {
  load_matrices_transposed(b.r, from + lane() % 16 * stride + lane() / 16 * 8);
}

inline constexpr int kLaneRows = 2;  // rows of C in which a lane has values
LB_DEVICE int lane_row(int i) { return lane() / 4 + 8 * i; }

// Calls visit(i, column, value) for each value of the lane; i counts the lane's rows.
template <class Visit>
LB_DEVICE void for_each_row(FragmentC& c, Visit&& visit) {
  LB_UNROLL
  for (int i = 0; i < 8; ++i) visit(i / 2 % 2, i / 4 * 8 + lane() % 4 * 2 + i % 2, c.v[i]);
}

// Reductions over the lanes that share a row.
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

// Rounds C to the operand A of the next product.
inline constexpr bool kSumIsOperand = true;  // in mma's layout, a lane's values of C are its values of A
template <class T>
LB_DEVICE void sum_as_operand(FragmentA<T>& a, const FragmentC& c) {
  LB_UNROLL
  for (int i = 0; i < 4; ++i) a.r[i] = pack(c.v[2 * i], c.v[2 * i + 1], T{});
}
// The scratch is only for chips where an accumulator's values must move to other lanes.
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

// Splits each value of C into high + low, two 16-bit numbers, and stores both in shared memory.
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
