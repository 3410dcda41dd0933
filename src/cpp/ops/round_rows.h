// Quantises activations to int8 codes, one scale per block of 32 values, once for all products that read them.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "quant/half.h"

namespace lb {

inline constexpr int kRoundBlock = 32;  // values that share a scale

// x = scale * (high + low / 254). Without `low` x keeps 8 bits. With it x keeps 16: the error is up to 2^-16 of the
// block's largest |x|.
struct RoundedRows {
  int8_t* high;  // [rows, n_in]
  int8_t* low;   // [rows, n_in], or null
  float* scale;  // [rows, n_in / 32]
  float* sum;    // [rows, n_in / 32] sum of a block's rounded x, for weight types with an offset
};

// Per block: scale = max|x| / 127, high = round(x / scale) half to even, low = round(254 (x / scale - high)).
struct RoundRows {
  const float* x;  // [rows, n_in]
  RoundedRows y;
  int rows, n_in;  // n_in a multiple of 32
};

// RoundedRows of [rows, n_in] in one allocation: its size, and its pointers. `low` only when is_16_bit.
LB_FN size_t rounded_bytes(int rows, int n_in, bool is_16_bit) {
  return size_t(rows) * n_in * (is_16_bit ? 2 : 1) + size_t(rows) * (n_in / kRoundBlock) * 2 * sizeof(float);
}
LB_FN RoundedRows rounded_rows(void* at, int rows, int n_in, bool is_16_bit) {
  const size_t values = size_t(rows) * n_in;
  auto* high = static_cast<int8_t*>(at);
  auto* scale = reinterpret_cast<float*>(high + values * (is_16_bit ? 2 : 1));
  return {high, is_16_bit ? high + values : nullptr, scale, scale + values / kRoundBlock};
}

}  // namespace lb
