// How skinny GEMM reads a weight type from planes (quant/planes.h) and converts it to 16-bit operands.
//
// From each k-block of 256 values, a lane holds two blocks of 32 values, t = lane % 4 (part 0) and t + 4 (part 1), for
// each of two outputs, lane / 4 and lane / 4 + 8. A factor shared by all 256 values multiplies the sums in fp32. A
// format has
//   kType      the weight type
//   kHasMin    value = scale * (code * field) - min * field
//   RowCursor  the address of an output's k-block in each plane; next: advances by 256 values
//   Unit       the lane's registers for a k-block of two outputs; read: loads them
//   Fields     scale(i), min(i): the shared factors of the i-th output, or scale(i, part) for each part; mins: an
//   operand of the blocks' min fields,
//              which multiplies the sums of x. The constructor reads all of a Unit but codes, so it waits for the loads
//   Scales     the scale operands of a part; mins(half), which multiplies x, if a block's halves have different mins
//   expand     word w of a part as operands: [0] values 4w to 4w + 3, [1] the values 16 further; each as the pairs
//              (0, 2) and (1, 3)
#pragma once

#include "gpu/f16_pairs.h"
#include "gpu/gemm_skinny/shape.h"

namespace lb::gpu {

LB_DEVICE f16x2 times(f16x2 a, uint32_t factors) { return fma2(a, pair_of(factors), pair_of(0)); }
LB_DEVICE uint32_t scaled(uint32_t bits, f16x2 scale, f16x2 off) { return pair_bits(fma2(pair_of(bits), scale, off)); }

// A pair of codes from four bytes that hold code + 128: bytes 0 and 2, or 1 and 3.
LB_DEVICE f16x2 code_pair(uint32_t bytes, int odd) {
  const uint32_t bits = permute_bytes(bytes, 0x64646464u, odd ? 0x4341 : 0x4240);  // 1024 + 128 + code
  return fma2(pair_of(bits), pair_of(twice(0x3c00)), pair_of(twice(0xe480)));
}

// Byte offset of an output's entries in a plane, from the start of the matrix.
LB_DEVICE uint64_t plane_offset(const quant::PlaneLayout& layout, int plane, uint32_t out) {
  return layout.offset[plane] + uint64_t(out) * uint32_t(layout.row_bytes[plane]);
}

}  // namespace lb::gpu
