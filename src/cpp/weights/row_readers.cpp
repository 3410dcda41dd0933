// Decodes FP8 and FP4 with lookup tables. Scales are multiplied in the order that the checkpoint writers use, so that
// the values have the same bits.
#include "weights/row_readers.h"

#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "quant/rows.h"

namespace lb {
namespace {

std::array<float, 256> make_e4m3_values() {
  std::array<float, 256> values;
  for (int code = 0; code < 256; ++code) {
    const int exponent = code >> 3 & 15, fraction = code & 7;
    const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(fraction), -9)
                                          : std::ldexp(static_cast<float>(8 + fraction), exponent - 10);
    const bool is_nan = (code & 0x7f) == 0x7f;
    values[code] = is_nan ? std::numeric_limits<float>::quiet_NaN() : code < 128 ? magnitude : -magnitude;
  }
  return values;
}

const std::array<float, 256>& e4m3_values() {
  static const std::array<float, 256> values = make_e4m3_values();
  return values;
}

float e2m1_value(int code) { return 0.5f * quant::kMxfp4Values[code]; }

}  // namespace

RowReader row_reader(Fp8Matrix matrix) {
  return [m = std::move(matrix)](int row, float* values) {
    const std::array<float, 256>& e4m3 = e4m3_values();
    const int columns = (m.n_in + m.block_columns - 1) / m.block_columns;
    const float* scales = m.scales.data() + static_cast<size_t>(row / m.block_rows) * columns;
    const uint8_t* codes = m.codes + static_cast<size_t>(row) * m.n_in;
    for (int i = 0; i < m.n_in; ++i) values[i] = e4m3[codes[i]] * scales[i / m.block_columns];
  };
}

RowReader row_reader(const Nvfp4Matrix& matrix) {
  return [m = matrix](int row, float* values) {
    const std::array<float, 256>& e4m3 = e4m3_values();
    const uint8_t* codes = m.codes + static_cast<size_t>(row) * (m.n_in / 2);
    const uint8_t* scales = m.scales + static_cast<size_t>(row) * (m.n_in / Nvfp4Matrix::kBlock);
    for (int i = 0; i < m.n_in; i += 2) {
      const float block = e4m3[scales[i / Nvfp4Matrix::kBlock]];
      const float scale = m.is_divisor ? block / m.tensor_scale : block * m.tensor_scale;
      values[i] = e2m1_value(codes[i / 2] & 15) * scale;
      values[i + 1] = e2m1_value(codes[i / 2] >> 4) * scale;
    }
  };
}

RowReader row_reader(const ScaledBlocks& matrix) {
  return [m = matrix](int row, float* values) {
    quant::dequantize_row(m.type, m.blocks + row * row_bytes(m.type, m.n_in), values, m.n_in);
    for (int i = 0; i < m.n_in; ++i) values[i] *= m.scale;
  };
}

}  // namespace lb
