// A warp's int8 products with exact int32 accumulators: C = A B^T + start, A of 16 rows, B of kByteRows rows.
// Instructions: mma.sync m16n8k32 and m16n8k16; m8n8k16 on sm_75. With g = lane / 4 and t = lane % 4, a word has four
// bytes of k:
//   ByteHalf  r[i] is row g + 8i, bytes [4t, 4t + 4)         BytesB  r[h] is row g, bytes [16h + 4t, 16h + 4t + 4)
//   ByteSums  v[2i + j] is row g + 8i of A, row 2t + j of B
#pragma once

#include <stdint.h>

namespace lb::gpu {

inline constexpr int kByteRows = 8;

struct ByteHalf {  // 16 rows x 16 bytes of A
  uint32_t r[2];
};
struct BytesB {  // kByteRows rows x 32 bytes
  uint32_t r[2];
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
  rows.v[0] = load<T>(from + lane() / 4);
  rows.v[1] = load<T>(from + lane() / 4 + 8);
}
LB_DEVICE void load(SumRowsB& rows, const float* from) {
  const f32x2 v = load<f32x2>(from + lane() % 4 * 2);
  rows.v[0] = v[0];
  rows.v[1] = v[1];
}
template <class T>
LB_DEVICE void load(OperandRows<T>& rows, const void* from, int stride) {
  const char* row = static_cast<const char*>(from) + lane() / 4 * stride;
  rows.v[0] = load<T>(row);
  rows.v[1] = load<T>(row + 8 * stride);
}
LB_DEVICE constexpr int operand_row(int i) { return i; }  // index into OperandRows for r[i] of a ByteHalf
LB_DEVICE int operand_word(int) { return lane() % 4; }    // index of r[i]'s four bytes in the row's 16
// Calls visit(row of A, row of B, index into SumRowsA, index into SumRowsB, index of the sum) for each sum of the lane.
template <class Visit>
LB_DEVICE void for_each_sum(Visit&& visit) {
  LB_UNROLL
  for (int i = 0; i < 4; ++i) visit(lane() / 4 + i / 2 * 8, lane() % 4 * 2 + i % 2, i / 2, i % 2, i);
}

LB_DEVICE uint32_t shared_address(const void* p) { return uint32_t(__cvta_generic_to_shared(p)); }

LB_DEVICE void load_matrices(uint32_t& a, uint32_t& b, uint32_t& c, uint32_t& d, const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(a), "=r"(b), "=r"(c), "=r"(d)
               : "r"(shared_address(row))
               : "memory");
}

// Loads 16 rows of 32 bytes from shared memory. Rows start 16-byte aligned; stride is in bytes.
LB_DEVICE void load(ByteHalf (&h)[2], const void* from, int stride) {
  const char* row = static_cast<const char*>(from) + lane() % 16 * stride + lane() / 16 * 16;
  load_matrices(h[0].r[0], h[0].r[1], h[1].r[0], h[1].r[1], row);
}
// Loads 16 rows of 16 bytes.
LB_DEVICE void load(ByteHalf& h, const void* from, int stride) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(h.r[0]), "=r"(h.r[1])
               : "r"(shared_address(static_cast<const char*>(from) + lane() % 16 * stride))
               : "memory");
}
// Loads kByteRows rows of 64 bytes.
LB_DEVICE void load(BytesB (&b)[2], const void* from, int stride) {
  const char* row = static_cast<const char*>(from) + lane() % 8 * stride + lane() / 8 * 16;
  load_matrices(b[0].r[0], b[0].r[1], b[1].r[0], b[1].r[1], row);
}
LB_DEVICE uint32_t pack_pair(float lo, float hi, f16) {
  uint32_t pair;
#if __CUDA_ARCH__ >= 800
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(hi), "f"(lo));
#else
  pair = uint32_t(to_f16(lo).bits) | uint32_t(to_f16(hi).bits) << 16;
#endif
  return pair;
}
#if __CUDA_ARCH__ >= 800
LB_DEVICE uint32_t pack_pair(float lo, float hi, bf16) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(hi), "f"(lo));
  return pair;
}
#endif

#if __CUDA_ARCH__ >= 800
// Product over 32 bytes of k.
LB_DEVICE ByteSums multiply(const ByteHalf& a0, const ByteHalf& a1, const BytesB& b, int start) {
  ByteSums c;
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%10, %10, %10, %10};"
      : "=r"(c.v[0]), "=r"(c.v[1]), "=r"(c.v[2]), "=r"(c.v[3])
      : "r"(a0.r[0]), "r"(a0.r[1]), "r"(a1.r[0]), "r"(a1.r[1]), "r"(b.r[0]), "r"(b.r[1]), "r"(start));
  return c;
}
// Product over 16 bytes of k; `half` selects the half of b.
LB_DEVICE ByteSums multiply_half(const ByteHalf& a, const BytesB& b, int half, int start) {
  ByteSums c;
  asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %7, %7, %7};"
      : "=r"(c.v[0]), "=r"(c.v[1]), "=r"(c.v[2]), "=r"(c.v[3])
      : "r"(a.r[0]), "r"(a.r[1]), "r"(b.r[half]), "r"(start));
  return c;
}
#else
// sm_75 has no bf16 matrix instruction: bf16 weights are converted to f16.
LB_DEVICE void convert(FragmentA<f16>& to, const FragmentA<bf16>& from) {
  LB_UNROLL
  for (int i = 0; i < 4; ++i) {
    const float lo = quant::float_of(from.r[i] << 16), hi = quant::float_of(from.r[i] & 0xffff0000u);
    to.r[i] = pack_pair(lo, hi, f16{});
  }
}

LB_DEVICE void multiply_eight(int* c, uint32_t a, uint32_t b) {
  asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};"
      : "+r"(c[0]), "+r"(c[1])
      : "r"(a), "r"(b));
}
LB_DEVICE ByteSums multiply_half(const ByteHalf& a, const BytesB& b, int half, int start) {
  ByteSums c = {{start, start, start, start}};
  multiply_eight(c.v, a.r[0], b.r[half]);
  multiply_eight(c.v + 2, a.r[1], b.r[half]);
  return c;
}
LB_DEVICE ByteSums multiply(const ByteHalf& a0, const ByteHalf& a1, const BytesB& b, int start) {
  ByteSums c = multiply_half(a0, b, 0, start);
  multiply_eight(c.v, a1.r[0], b.r[1]);
  multiply_eight(c.v + 2, a1.r[1], b.r[1]);
  return c;
}
#endif

// expand() converts 16 x 16 bytes to a 16-bit fragment: number * scale - offset, with each row's scale and offset,
// rounded once. numbers(word) are the numbers of four bytes. It permutes k: the other operand must have value k (of 16)
// at expanded_index(k).
LB_DEVICE constexpr int expanded_index(int k) { return k / 4 * 2 + k % 4 / 2 * 8 + k % 2; }

template <class T, class Numbers>
LB_DEVICE void expand(FragmentA<T>& a, const ByteHalf& h, const OperandRows<f32x2>& scale, Numbers&& numbers) {
  LB_UNROLL
  for (int i = 0; i < 2; ++i) {
    f32x4 v = numbers(h.r[i]);
    LB_UNROLL
    for (int j = 0; j < 4; ++j) v[j] = fma(v[j], scale.v[i][0], -scale.v[i][1]);
    a.r[i] = pack_pair(v[0], v[1], T{});
    a.r[2 + i] = pack_pair(v[2], v[3], T{});
  }
}

// expand_codes() does the same for bytes below 128, with one instruction less per byte. Its fields come from
// code_field(scale, offset) of the row.
LB_DEVICE f32x2 code_field(float scale, float offset) { return {scale, fma(128.0f, scale, offset)}; }

template <class T>
LB_DEVICE void expand_codes(FragmentA<T>& a, const ByteHalf& h, const OperandRows<f32x2>& field) {
  LB_UNROLL
  for (int i = 0; i < 2; ++i) {
    float v[4];
    LB_UNROLL
    for (int j = 0; j < 4; ++j) {  // bits of the float 128 + byte
      const uint32_t bits = __byte_perm(h.r[i], 0x43000000u, 0x7044 + (j << 8));
      v[j] = fma(quant::float_of(bits), field.v[i][0], -field.v[i][1]);
    }
    a.r[i] = pack_pair(v[0], v[1], T{});
    a.r[2 + i] = pack_pair(v[2], v[3], T{});
  }
}

}  // namespace lb::gpu
