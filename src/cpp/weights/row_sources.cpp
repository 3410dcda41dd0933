// Writes rows of FP8 and NVFP4. Scales are multiplied in the order that the tools of these checkpoints use, so that
// the values have the same bits.
#include "weights/row_sources.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/error.h"
#include "quant/rows.h"

namespace lb {
namespace {

constexpr int kNan = 0x7f;  // e4m3, without the sign

void check_numbers(const uint8_t* codes, int n, const std::string& name) {
  int n_nans = 0;  // no early exit, so that compilers vectorise the loop
  for (int i = 0; i < n; ++i) n_nans += (codes[i] & kNan) == kNan;
  LB_CHECK(n_nans == 0, kFormat, "tensor ", name, " has FP8 numbers that are not finite. Download the file again");
}

void put_bf16(const std::vector<float>& values, std::byte* to) {
  for (size_t i = 0; i < values.size(); ++i) {
    const uint16_t rounded = quant::f32_to_bf16(values[i]);
    std::memcpy(to + i * sizeof rounded, &rounded, sizeof rounded);
  }
}

int code_of(const uint8_t* codes, int i) { return codes[i / 2] >> 4 * (i % 2) & 15; }

quant::ScaledHeader header_of(const Nvfp4Matrix& m) {
  return m.is_divisor ? quant::ScaledHeader{1 / m.tensor_scale, m.tensor_scale}
                      : quant::ScaledHeader{m.tensor_scale, 0};
}

// One block: 64 values and their four scales. Blocks have scales without sign, so a negative one negates its codes.
quant::BlockNVFP4 packed_block(const uint8_t* codes, const uint8_t* scales) {
  quant::BlockNVFP4 block = {};
  for (int sub = 0; sub < 4; ++sub) {
    const int flip = scales[sub] >> 7 << 3;
    block.d[sub] = scales[sub] & 0x7f;
    for (int j = 0; j < 8; ++j) {
      const int first = code_of(codes, 16 * sub + j) ^ flip, second = code_of(codes, 16 * sub + j + 8) ^ flip;
      block.qs[sub][j] = uint8_t(first | second << 4);
    }
  }
  return block;
}

}  // namespace

RowSource row_source(Fp8Matrix matrix, std::string name) {
  constexpr int kValues = quant::BlockF8::kValues;
  const bool has_one_scale = matrix.block_columns >= matrix.n_in || matrix.block_columns % kValues == 0;
  const bool is_packed = matrix.n_in % kValues == 0 && has_one_scale;
  const auto write = [m = std::move(matrix), name = std::move(name), is_packed](int row, std::byte* to) {
    const int columns = (m.n_in + m.block_columns - 1) / m.block_columns;
    const float* scales = m.scales.data() + static_cast<size_t>(row / m.block_rows) * columns;
    const uint8_t* codes = m.codes + static_cast<size_t>(row) * m.n_in;
    check_numbers(codes, m.n_in, name);
    if (is_packed) {
      for (int i = 0; i < m.n_in; i += kValues, to += sizeof(quant::BlockF8)) {
        std::memcpy(to, scales + i / m.block_columns, sizeof(float));
        std::memcpy(to + sizeof(float), codes + i, kValues);
      }
    } else {
      std::vector<float> values(m.n_in);
      for (int i = 0; i < m.n_in; ++i) values[i] = quant::e4m3_value(codes[i]) * scales[i / m.block_columns];
      put_bf16(values, to);
    }
  };
  return {is_packed ? DType::kF8_E4M3 : DType::kBF16, write};
}

RowSource row_source(const Nvfp4Matrix& matrix, std::string name) {
  constexpr int kValues = quant::BlockNVFP4::kValues;
  const bool is_packed = matrix.n_in % kValues == 0;
  const auto write = [m = matrix, name = std::move(name), is_packed](int row, std::byte* to) {
    const uint8_t* codes = m.codes + static_cast<size_t>(row) * (m.n_in / 2);
    const uint8_t* scales = m.scales + static_cast<size_t>(row) * (m.n_in / Nvfp4Matrix::kBlock);
    const quant::ScaledHeader header = header_of(m);
    check_numbers(scales, m.n_in / Nvfp4Matrix::kBlock, name);
    if (is_packed) {
      std::memcpy(to, &header, sizeof header);
      to += sizeof header;
      for (int i = 0; i < m.n_in; i += kValues, to += sizeof(quant::BlockNVFP4)) {
        const quant::BlockNVFP4 block = packed_block(codes + i / 2, scales + i / Nvfp4Matrix::kBlock);
        std::memcpy(to, &block, sizeof block);
      }
    } else {
      std::vector<float> values(m.n_in);
      for (int i = 0; i < m.n_in; ++i) {
        const float scale = quant::scaled(quant::e4m3_value(scales[i / Nvfp4Matrix::kBlock]), header);
        values[i] = 0.5f * float(quant::kMxfp4Values[code_of(codes, i)]) * scale;
      }
      put_bf16(values, to);
    }
  };
  return {is_packed ? DType::kNVFP4_SCALED : DType::kBF16, write};
}

RowSource row_source(ScaledBlocks matrix) {
  const auto write = [m = std::move(matrix)](int row, std::byte* to) {
    const size_t bytes = row_bytes(DType::kNVFP4, m.n_in);
    const quant::ScaledHeader header = {m.scales[row / m.rows_per_scale], 0};
    std::memcpy(to, &header, sizeof header);
    std::memcpy(to + sizeof header, m.blocks + row * bytes, bytes);
  };
  return {DType::kNVFP4_SCALED, write};
}

}  // namespace lb
