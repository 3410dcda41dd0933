// Matrices whose rows a loader writes to host memory, because no op reads them as the file has them: FP8, and NVFP4
// with a scale of the tensor. The codes stay as they are. Rows that the types of quant/blocks.h cannot hold become
// BF16.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/dtype.h"

namespace lb {

// write: to [row_bytes(type, n_in)] <- row `row`. Called from several threads. Throws if a number is not finite.
struct RowSource {
  DType type = DType::kBF16;
  std::function<void(int row, std::byte* to)> write;
};

// FP8 (e4m3, without infinities) times a scale per block.
struct Fp8Matrix {
  const uint8_t* codes;       // [n_out, n_in]
  std::vector<float> scales;  // [ceil(n_out / block_rows), ceil(n_in / block_columns)]
  int n_in, block_rows, block_columns;
};
// F8_E4M3, or BF16 if 128 values of a row may have several scales.
RowSource row_source(Fp8Matrix matrix, std::string name);

// NVFP4 of a checkpoint: FP4 (e2m1) times the block's scale (e4m3), multiplied or divided by the tensor's scale.
struct Nvfp4Matrix {
  static constexpr int kBlock = 16;

  const uint8_t* codes;   // [n_out, n_in / 2], the even column in the low nibble
  const uint8_t* scales;  // [n_out, n_in / kBlock]
  int n_in;
  float tensor_scale;
  bool is_divisor;  // divide by tensor_scale
};
// NVFP4_SCALED, or BF16 if the rows are no multiples of 64 values.
RowSource row_source(const Nvfp4Matrix& matrix, std::string name);

// NVFP4 blocks of a GGUF file times a scale of the tensor; of the matrices of several experts, rows_per_scale rows have
// one scale.
struct ScaledBlocks {
  const std::byte* blocks;
  int n_in;
  std::vector<float> scales;
  int rows_per_scale;
};
RowSource row_source(ScaledBlocks matrix);

}  // namespace lb
