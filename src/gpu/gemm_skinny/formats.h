// How the products of few rows read each type, from the planes of quant/planes.h, and make 16-bit operands of it. Of
// 256 values a lane has the runs t = lane % 4 (part 0) and t + 4 (part 1) of two outputs, lane / 4 and lane / 4 + 8.
// What all of an output's 256 values share is multiplied in fp32 afterwards. A format has
//   kHasMin   value = scale * (code * field) - min * field
//   Row       where an output's planes are; next: 256 values on
//   Unit      read: what a lane has of 256 values
//   Fields    scale(i), min(i): of the 256 values of the i-th output; mins: of runs, for a product with sums of x. Once
//             made, it has read what it needs of the unit but codes: so the unit has come
//   Scales    of a part; mins(half), where the fields of mins are those of half a run: for products with x itself
//   expand    word w of a part: [0] values 4w to 4w + 3, [1] those 16 further on; each as 0 and 2, then 1 and 3
#pragma once

#include "gpu/gemm_skinny/shape.h"
#include "pairs.h"

namespace lb::gpu {

LB_DEVICE f16x2 pair_of(uint32_t bits) { return __builtin_bit_cast(f16x2, bits); }
LB_DEVICE uint32_t pair_bits(f16x2 pair) { return __builtin_bit_cast(uint32_t, pair); }

LB_DEVICE constexpr uint32_t twice(uint32_t half) { return half | half << 16; }

// Two numbers below 1024, as bits 0 to 9 and 16 to 25, less `off`: their sums with 1024 are numbers of f16.
template <int kOff>
LB_DEVICE f16x2 small_pair(uint32_t bits) {
  return fma2(pair_of(bits | twice(0x6400)), pair_of(twice(0x3c00)), pair_of(twice(0xe400 + kOff)));
}
LB_DEVICE f16x2 times(f16x2 a, uint32_t factors) { return fma2(a, pair_of(factors), pair_of(0)); }
LB_DEVICE uint32_t scaled(uint32_t bits, f16x2 scale, f16x2 off) { return pair_bits(fma2(pair_of(bits), scale, off)); }

// Of four bytes, codes + 128, a pair of codes: bytes 0 and 2, or 1 and 3.
LB_DEVICE f16x2 code_pair(uint32_t bytes, int odd) {
  const uint32_t bits = permute_bytes(bytes, 0x64646464u, odd ? 0x4341 : 0x4240);  // 1024 + 128 + code
  return fma2(pair_of(bits), pair_of(twice(0x3c00)), pair_of(twice(0xe480)));
}

// Where the entries of an output begin.
LB_DEVICE uint64_t plane_offset(const quant::PlaneLayout& layout, int plane, uint32_t out) {
  return layout.offset[plane] + uint64_t(out) * uint32_t(layout.row_bytes[plane]);
}

}  // namespace lb::gpu
