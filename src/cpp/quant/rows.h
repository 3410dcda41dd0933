// Rows of any element type: dispatch on the block struct, dequantisation, size in bytes. Host only.
#pragma once

#include "quant/codebook_blocks.h"
#include "quant/dequantize.h"

namespace lb::quant {

// Calls f(Block{}) with the block struct of a quantised type; returns false for plain numbers.
template <class F>
LB_FN bool visit_block(DType type, F&& f) {
  switch (type) {
    case DType::kQ4_0: f(BlockQ4_0{}); return true;
    case DType::kQ4_1: f(BlockQ4_1{}); return true;
    case DType::kQ5_0: f(BlockQ5_0{}); return true;
    case DType::kQ5_1: f(BlockQ5_1{}); return true;
    case DType::kQ8_0: f(BlockQ8_0{}); return true;
    case DType::kQ2_K: f(BlockQ2_K{}); return true;
    case DType::kQ3_K: f(BlockQ3_K{}); return true;
    case DType::kQ4_K: f(BlockQ4_K{}); return true;
    case DType::kQ5_K: f(BlockQ5_K{}); return true;
    case DType::kQ6_K: f(BlockQ6_K{}); return true;
    case DType::kIQ4_NL: f(BlockIQ4_NL{}); return true;
    case DType::kIQ4_XS: f(BlockIQ4_XS{}); return true;
    case DType::kMXFP4: f(BlockMXFP4{}); return true;
    case DType::kIQ1_S: f(BlockIQ1_S{}); return true;
    case DType::kIQ1_M: f(BlockIQ1_M{}); return true;
    case DType::kIQ2_XXS: f(BlockIQ2_XXS{}); return true;
    case DType::kIQ2_XS: f(BlockIQ2_XS{}); return true;
    case DType::kIQ2_S: f(BlockIQ2_S{}); return true;
    case DType::kIQ3_XXS: f(BlockIQ3_XXS{}); return true;
    case DType::kIQ3_S: f(BlockIQ3_S{}); return true;
    case DType::kTQ1_0: f(BlockTQ1_0{}); return true;
    case DType::kTQ2_0: f(BlockTQ2_0{}); return true;
    case DType::kNVFP4: f(BlockNVFP4{}); return true;
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16: break;
  }
  return false;
}

// y [count] <- the values at `data`; count is a multiple of the type's block.
LB_FN void dequantize_row(DType type, const void* data, float* y, long count) {
  const auto* half = static_cast<const uint16_t*>(data);
  if (type == DType::kF32) {
    for (long i = 0; i < count; ++i) y[i] = static_cast<const float*>(data)[i];
  } else if (type == DType::kF16) {
    for (long i = 0; i < count; ++i) y[i] = f16_to_f32(half[i]);
  } else if (type == DType::kBF16) {
    for (long i = 0; i < count; ++i) y[i] = bf16_to_f32(half[i]);
  } else {
    visit_block(type, [&](auto tag) {
      using Block = decltype(tag);
      const Block* block = static_cast<const Block*>(data);
      for (long i = 0; i < count; i += Block::kValues) dequantize(*block++, y + i);
    });
  }
}

// Bytes of `count` values. Equals row_bytes() of base/dtype.h, for files that may not call inline functions with
// external linkage.
LB_FN long bytes_of(DType type, long count) {
  long bytes = count * (type == DType::kF32 ? 4 : 2);
  visit_block(type, [&](auto tag) { bytes = count / decltype(tag)::kValues * long(sizeof(tag)); });
  return bytes;
}

}  // namespace lb::quant
