// A warp's products of fp8 and block-scaled fp8 and fp4 operands with fp32 sums, by mma.sync: C[16, 8] += A[16, k] B[8,
// k]^T. Operands are loaded as bytes (byte_matrix.h): k is 32 bytes, 32 numbers of fp8 or 64 of fp4, the first in the
// low nibble. Sums have the layout of ByteSums.
//
// Scales multiply consecutive k of a row, one byte each, the first in the low byte of a word. A lane has the words of
// row lane / 4 + 8 (lane % 2) of A and of row lane / 4 of B. The sign of an e4m3 scale is ignored; a scale that is not
// a number makes the sum 0x7fffffff.
#pragma once

#include <stdint.h>

namespace lb::gpu {

#define LB_NARROW_OPERANDS            \
  "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), \
      "+f"(c[3]) : "r"(a[0].r[0]), "r"(a[0].r[1]), "r"(a[1].r[0]), "r"(a[1].r[1]), "r"(b.r[0]), "r"(b.r[1])
#define LB_NARROW_REGISTERS "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3}"
#define LB_SCALED_REGISTERS LB_NARROW_REGISTERS ", %10, {0, 0}, %11, {0, 0};"

// The bits of a term that the matrix unit keeps in a sum of e4m3 products (sim/fused_sum.h): 13 on sm_89, so add C to
// an fp32 sum after a few products; 25 on sm_120. Other chips have no such instruction and would convert to f16.
#if __CUDA_ARCH__ == 890
inline constexpr int kFp8SumBits = 13;
#elif __CUDA_ARCH__ >= 1200
inline constexpr int kFp8SumBits = 25;
#else
inline constexpr int kFp8SumBits = 0;
#endif

template <int kSumBits>
LB_DEVICE void multiply_fp8(float (&c)[4], const ByteHalf (&a)[2], const BytesB& b) {
  static_assert(kSumBits == kFp8SumBits, "this chip's sums of fp8 products have other bits");
  asm("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 " LB_NARROW_REGISTERS ";" : LB_NARROW_OPERANDS);
}

#if __CUDA_ARCH__ >= 1200
// NVFP4: e2m1 with an e4m3 scale per 16 values.
LB_DEVICE void multiply_nvfp4(float (&c)[4], const ByteHalf (&a)[2], const BytesB& b, uint32_t scales_a,
                              uint32_t scales_b) {
  asm("mma.sync.aligned.m16n8k64.row.col.kind::mxf4nvf4.block_scale.scale_vec::4X.f32.e2m1.e2m1.f32.ue4m3 "  //
      LB_SCALED_REGISTERS
      : LB_NARROW_OPERANDS, "r"(scales_a), "r"(scales_b));
}
// MXFP4: e2m1 with an e8m0 scale per 32 values.
LB_DEVICE void multiply_mxfp4(float (&c)[4], const ByteHalf (&a)[2], const BytesB& b, uint32_t scales_a,
                              uint32_t scales_b) {
  asm("mma.sync.aligned.m16n8k64.row.col.kind::mxf4.block_scale.scale_vec::2X.f32.e2m1.e2m1.f32.ue8m0 "  //
      LB_SCALED_REGISTERS
      : LB_NARROW_OPERANDS, "r"(scales_a), "r"(scales_b));
}
// MXFP8: e4m3 with an e8m0 scale per 32 values.
LB_DEVICE void multiply_mxfp8(float (&c)[4], const ByteHalf (&a)[2], const BytesB& b, uint32_t scales_a,
                              uint32_t scales_b) {
  asm("mma.sync.aligned.m16n8k32.row.col.kind::mxf8f6f4.block_scale.scale_vec::1X.f32.e4m3.e4m3.f32.ue8m0 "  //
      LB_SCALED_REGISTERS
      : LB_NARROW_OPERANDS, "r"(scales_a), "r"(scales_b));
}

// Two e2m1 numbers in a byte, lo in the low nibble: to nearest, half to even, at most 6.
LB_DEVICE uint32_t to_fp4_pair(float lo, float hi) {
  uint16_t pair;
  asm("{\n.reg .b8 pair;\ncvt.rn.satfinite.e2m1x2.f32 pair, %2, %1;\nmov.b16 %0, {pair, 0};\n}"
      : "=h"(pair)
      : "f"(lo), "f"(hi));
  return pair;
}
#endif

#undef LB_SCALED_REGISTERS
#undef LB_NARROW_REGISTERS
#undef LB_NARROW_OPERANDS

}  // namespace lb::gpu
