// Products of 16-bit numbers (mma m16n8k16) with a permuted inner dimension. Any order of k that both operands share
// gives the same products, so the words that a lane loads are operand registers without a shuffle. With g = lane / 4, a
// lane has four values of each row:
//   A  r[i] two of row g + 8i, r[2 + i] the other two      B  b[0] two of row g, b[1] the other two
// The accumulators have the layout of ByteSums (byte_matrix.h): for_each_sum.
#pragma once

namespace lb::gpu {

struct PairsA {
  uint32_t r[4];
};

// C[16, 8] += A[16, 16] B[8, 16]^T
LB_DEVICE void multiply_pairs(float (&c)[4], const PairsA& a, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "r"(b0), "r"(b1));
}

// Same product, with bf16 operands.
LB_DEVICE void multiply_bf16_pairs(float (&c)[4], const PairsA& a, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "r"(b0), "r"(b1));
}

// (x & mask) ^ bits as one instruction, which the compiler misses when both are constants.
LB_DEVICE uint32_t and_xor(uint32_t x, uint32_t mask, uint32_t bits) {
  uint32_t y;
  asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(y) : "r"(x), "r"(mask), "r"(bits));
  return y;
}

LB_DEVICE f16x2 add2(f16x2 a, f16x2 b) {
  uint32_t y;
  asm("add.rn.f16x2 %0, %1, %2;"
      : "=r"(y)
      : "r"(__builtin_bit_cast(uint32_t, a)), "r"(__builtin_bit_cast(uint32_t, b)));
  return __builtin_bit_cast(f16x2, y);
}

// Sets register i of an operand of matrix.h.
LB_DEVICE void set_pair(FragmentA<f16>& a, int i, f16x2 pair) { a.r[i] = __builtin_bit_cast(uint32_t, pair); }

// The 8x8 transpose of a warp's pairs: lane 4 r + c gives values 2 c and 2 c + 1 of row r, and gets the
// same values of column r.
LB_DEVICE uint32_t transpose_pairs(uint32_t pair) {
  uint32_t y;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(pair));
  return y;
}

}  // namespace lb::gpu
