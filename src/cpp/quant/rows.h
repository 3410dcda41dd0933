// Rows of any element type: dispatch on the block struct, dequantisation, size in bytes. Host only.
#pragma once

#include "quant/codebook_blocks.h"
#include "quant/dequantize.h"

namespace lb::quant {

// Calls f(Block{}) with the block struct of a type whose codes are integers; returns false for others: plain numbers
// and F8_E4M3.
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
    case DType::kNVFP4_SCALED: f(BlockNVFP4Scaled{}); return true;
    case DType::kF8_E4M3:
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16: break;
  }
  return false;
}

template <class Block>
inline constexpr int kHeaderBytes = Block::kType == DType::kNVFP4_SCALED ? int(sizeof(ScaledHeader)) : 0;

// The first block of row `row` of a matrix with n_in columns.
template <class Block>
LB_FN const Block* row_blocks(const void* w, long row, long n_in) {
  const long bytes = kHeaderBytes<Block> + n_in / Block::kValues * long(sizeof(Block));
  return reinterpret_cast<const Block*>(static_cast<const char*>(w) + row * bytes + kHeaderBytes<Block>);
}

// The header before a row's first block.
LB_FN ScaledHeader header_of(const BlockNVFP4Scaled* first) {
  ScaledHeader header;
  memcpy(&header, reinterpret_cast<const char*>(first) - sizeof header, sizeof header);
  return header;
}

// The number that multiplies the products of a row's blocks.
template <class Block>
LB_FN float row_factor(const Block* first) {
  if constexpr (kHeaderBytes<Block> > 0)
    return header_of(first).factor;
  else
    return 1;
}

// y [count] <- the values of a row, from its first block.
template <class Block>
LB_FN void dequantize_blocks(const Block* block, float* y, long count) {
  if constexpr (kHeaderBytes<Block> > 0) {
    const ScaledHeader header = header_of(block);
    for (long i = 0; i < count; i += Block::kSub) {
      int8_t q[Block::kSub];
      const float scale = unpack(block[i / Block::kValues], int(i % Block::kValues / Block::kSub), q).scale;
      for (int l = 0; l < Block::kSub; ++l) y[i + l] = scaled(scale, header) * float(q[l]);
    }
  } else {
    for (long i = 0; i < count; i += Block::kValues) dequantize(*block++, y + i);
  }
}

// The same for FP8.
LB_FN void dequantize_blocks(const BlockF8* block, float* y, long count) {
  for (long i = 0; i < count; i += BlockF8::kValues, ++block)
    for (int l = 0; l < BlockF8::kValues; ++l) y[i + l] = e4m3_value(block->q[l]) * block->scale;
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
  } else if (type == DType::kF8_E4M3) {
    dequantize_blocks(static_cast<const BlockF8*>(data), y, count);
  } else {
    visit_block(type, [&](auto tag) {
      using Block = decltype(tag);
      dequantize_blocks(row_blocks<Block>(data, 0, count), y, count);
    });
  }
}

// Bytes of a row of `count` values. Equals row_bytes() of base/dtype.h, for files that may not call inline functions
// with external linkage.
LB_FN long bytes_of(DType type, long count) {
  if (type == DType::kF8_E4M3) return count / BlockF8::kValues * long(sizeof(BlockF8));
  long bytes = count * (type == DType::kF32 ? 4 : 2);
  visit_block(type, [&](auto tag) {
    bytes = kHeaderBytes<decltype(tag)> + count / decltype(tag)::kValues * long(sizeof(tag));
  });
  return bytes;
}

}  // namespace lb::quant
