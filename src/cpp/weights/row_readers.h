// Row readers of matrices that become BF16 in host memory: each returns the values of one row of the mapped file.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/dtype.h"

namespace lb {

// values [n_in] <- row `row`. Called from several threads.
using RowReader = std::function<void(int row, float* values)>;

// FP8 (e4m3, with NaN, without infinities) times a scale per block.
struct Fp8Matrix {
  const uint8_t* codes;       // [n_out, n_in]
  std::vector<float> scales;  // [ceil(n_out / block_rows), ceil(n_in / block_columns)]
  int n_in, block_rows, block_columns;
};
RowReader row_reader(Fp8Matrix matrix);

// NVFP4 of a checkpoint: FP4 (e2m1) times the block's scale (e4m3), multiplied or divided by the tensor's scale.
struct Nvfp4Matrix {
  static constexpr int kBlock = 16;

  const uint8_t* codes;   // [n_out, n_in / 2], the even column in the low nibble
  const uint8_t* scales;  // [n_out, n_in / kBlock]
  int n_in;
  float tensor_scale;
  bool is_divisor;  // divide by tensor_scale
};
RowReader row_reader(const Nvfp4Matrix& matrix);

// GGUF blocks times a per-tensor scale.
struct ScaledBlocks {
  const std::byte* blocks;
  DType type;
  int n_in;
  float scale;
};
RowReader row_reader(const ScaledBlocks& matrix);

}  // namespace lb
