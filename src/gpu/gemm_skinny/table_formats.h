// Skinny GEMM operands for the weight types whose codes index a table of values (IQ4_NL, IQ4_XS, MXFP4, NVFP4).
#pragma once

#include "gpu/gemm_skinny/formats.h"
#include "gpu/nibble_table.h"

namespace lb::gpu {

// Converts a word of codes of the i-th output to operands: table values times scale. `first` and `second` hold the f16
// scale of the low and of the high nibbles in both halves.
template <DType kType>
LB_DEVICE void expand_table_codes(PairsA (&a)[2], int i, uint32_t codes, uint32_t first, uint32_t second) {
  const Magnitudes looked = look_up<kType>(codes);
  u32x2 bytes;  // table values + 128, so that no borrow crosses a byte
  LB_UNROLL
  for (int j = 0; j < 2; ++j)
    bytes[j] = kHasFp4<kType> ? 0x80808080u + looked.first[j] - looked.second[j]
                              : 0x80808080u + looked.second[j] - looked.first[j];
  LB_UNROLL
  for (int half = 0; half < 2; ++half) {  // the low nibbles are the first half of a block
    const uint32_t own = permute_bytes(bytes[0], bytes[1], half ? 0x7531 : 0x6420);
    LB_UNROLL
    for (int odd = 0; odd < 2; ++odd)
      a[half].r[2 * odd + i] = pair_bits(times(code_pair(own, odd), half ? second : first));
  }
}

template <DType kType>
LB_DEVICE void expand_table_codes(PairsA (&a)[2], int i, uint32_t codes, uint32_t scale) {
  expand_table_codes<kType>(a, i, codes, scale, scale);
}

}  // namespace lb::gpu
