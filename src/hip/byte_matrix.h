// A warp's int8 products with exact int32 accumulators: C = A B^T + start, A of 16 rows, B of kByteRows rows. One WMMA
// instruction per 16 bytes of k. With r = lane % 16, h = lane / 16:
//          operands                                      sums
//   gfx11  words 0..3 of row r, in both half-warps       v[i] is row 2i + h of A, row r of B
//   gfx12  words 2h, 2h + 1 of row r                     v[i] is row i + 8h of A, row r of B
#pragma once

#include <stdint.h>

namespace lb::gpu {

inline constexpr int kByteRows = 16;

#ifdef __GFX12__
inline constexpr int kOperandWords = 2;
#else
inline constexpr int kOperandWords = 4;
#endif
typedef int OperandBytes __attribute__((ext_vector_type(kOperandWords)));

struct ByteHalf {  // 16 rows x 16 bytes of A
  uint32_t r[kOperandWords];
};
struct BytesB {  // kByteRows rows x 32 bytes
  ByteHalf half[2];
};
struct ByteSums {
  int v[8];
};

LB_DEVICE int sum_row_a(int i) {
#ifdef __GFX12__
  return i + lane() / 16 * 8;
#else
  return 2 * i + lane() / 16;
#endif
}

// Per-row tables in the form that a lane needs. SumRowsA and SumRowsB: entries for the rows of its sums. OperandRows:
// entries for the rows of A in its operand registers.
template <class T>
struct SumRowsA {
  T v[8];
};
struct SumRowsB {
  float v[1];
};
template <class T>
struct OperandRows {
  T v[1];
};
template <class T>
LB_DEVICE void load(SumRowsA<T>& rows, const T* from) {
  LB_UNROLL
  for (int i = 0; i < 8; ++i) rows.v[i] = load<T>(from + sum_row_a(i));
}
LB_DEVICE void load(SumRowsB& rows, const float* from) { rows.v[0] = from[lane() % 16]; }
template <class T>
LB_DEVICE void load(OperandRows<T>& rows, const void* from, int stride) {
  rows.v[0] = load<T>(static_cast<const char*>(from) + lane() % 16 * stride);
}
LB_DEVICE constexpr int operand_row(int) { return 0; }  // index into OperandRows for r[i] of a ByteHalf
LB_DEVICE int operand_word(int i) {                     // index of r[i]'s four bytes in the row's 16
#ifdef __GFX12__
  return i + lane() / 16 * 2;
#else
  return i;
#endif
}
// Calls visit(row of A, row of B, index into SumRowsA, index into SumRowsB, index of the sum) for each sum of the lane.
template <class Visit>
LB_DEVICE void for_each_sum(Visit&& visit) {
  LB_UNROLL
  for (int i = 0; i < 8; ++i) visit(sum_row_a(i), lane() % 16, i, 0, i);
}

LB_DEVICE void load_row(ByteHalf& h, const char* row) {
#ifdef __GFX12__
  const u32x2 v = load<u32x2>(row + lane() / 16 * 8);
#else
  const u32x4 v = load<u32x4>(row);
#endif
  LB_UNROLL
  for (int i = 0; i < kOperandWords; ++i) h.r[i] = v[i];
}
// Loads 16 rows of 32 bytes from shared memory. Rows start 16-byte aligned; stride is in bytes.
LB_DEVICE void load(ByteHalf (&h)[2], const void* from, int stride) {
  const char* row = static_cast<const char*>(from) + lane() % 16 * stride;
  load_row(h[0], row);
  load_row(h[1], row + 16);
}
// Loads 16 rows of 16 bytes.
LB_DEVICE void load(ByteHalf& h, const void* from, int stride) {
  load_row(h, static_cast<const char*>(from) + lane() % 16 * stride);
}
// Loads kByteRows rows of 64 bytes.
LB_DEVICE void load(BytesB (&b)[2], const void* from, int stride) {
  load(b[0].half, from, stride);
  load(b[1].half, static_cast<const char*>(from) + 32, stride);
}
typedef int WmmaSums __attribute__((ext_vector_type(8)));

LB_DEVICE WmmaSums multiply_sixteen(WmmaSums c, const ByteHalf& a, const ByteHalf& b) {
#ifdef __GFX12__
  return __builtin_amdgcn_wmma_i32_16x16x16_iu8_w32_gfx12(true, __builtin_bit_cast(OperandBytes, a), true,
                                                          __builtin_bit_cast(OperandBytes, b), c, false);
#else
  return __builtin_amdgcn_wmma_i32_16x16x16_iu8_w32(true, __builtin_bit_cast(OperandBytes, a), true,
                                                    __builtin_bit_cast(OperandBytes, b), c, false);
#endif
}
// Product over 16 bytes of k; `half` selects the half of b.
LB_DEVICE ByteSums multiply_half(const ByteHalf& a, const BytesB& b, int half, int start) {
  return __builtin_bit_cast(ByteSums, multiply_sixteen(WmmaSums(start), a, b.half[half]));
}
// Product over 32 bytes of k.
LB_DEVICE ByteSums multiply(const ByteHalf& a0, const ByteHalf& a1, const BytesB& b, int start) {
  const WmmaSums c = multiply_sixteen(WmmaSums(start), a0, b.half[0]);
  return __builtin_bit_cast(ByteSums, multiply_sixteen(c, a1, b.half[1]));
}

// expand() converts 16 x 16 bytes to a 16-bit fragment: number * scale - offset, with each row's scale and offset,
// rounded once. numbers(word) are the numbers of four bytes. It permutes k: the other operand must have value k (of 16)
// at expanded_index(k).
LB_DEVICE constexpr int expanded_index(int k) { return k; }

template <class T, class Numbers>
LB_DEVICE void expand(FragmentA<T>& a, const ByteHalf& h, const OperandRows<f32x2>& scale, Numbers&& numbers) {
  uint32_t pairs[2 * kOperandWords];
  LB_UNROLL
  for (int i = 0; i < kOperandWords; ++i) {
    const f32x4 of_word = numbers(h.r[i]);
    LB_UNROLL
    for (int j = 0; j < 4; j += 2) {
      uint32_t bits[2];
      LB_UNROLL
      for (int l = 0; l < 2; ++l) {
        const float v = fma(of_word[j + l], scale.v[0][0], -scale.v[0][1]);
        if constexpr (__is_same(T, bf16))
          bits[l] = __builtin_bit_cast(uint16_t, __bf16(v));  // to_bf16 branches
        else
          bits[l] = to_f16(v).bits;
      }
      pairs[2 * i + j / 2] = bits[0] | bits[1] << 16;
    }
  }
  LB_UNROLL
  for (int i = 0; i < 2 * kOperandWords; ++i) a.r[i / 4][i % 4] = pairs[i];
}

}  // namespace lb::gpu
