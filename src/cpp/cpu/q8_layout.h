// Rows rounded to 8 bits in shared scratch, as products read them.
#pragma once

#include <cstddef>

#include "base/dtype.h"
#include "cpu/kernels.h"

namespace lb::cpu {

inline constexpr int kTaskRows = 32;  // weight rows of an AVX-512 panel; tasks have multiples

// Whether products with weights of a type round x to 8 bits. The codes of FP8 are no integers.
inline bool rounds_x(DType type, Activations activations) {
  return info(type).block_values > 1 && type != DType::kF8_E4M3 && activations != Activations::kF32;
}

inline int round_up(int n, int unit) { return (n + unit - 1) / unit * unit; }

// Layout: [q | scales | sums].
struct Q8Layout {
  int stride, n_blocks;
  size_t scale_at, sum_at, bytes;

  Q8Rows rows_at(std::byte* base, int rows, int n_in) const {
    return {reinterpret_cast<int8_t*>(base),
            reinterpret_cast<float*>(base + scale_at),
            reinterpret_cast<int32_t*>(base + sum_at),
            rows,
            n_in,
            stride,
            n_blocks};
  }
};

inline void quantize_row(const Kernels& kernels, const float* x, const Q8Rows& to, int row) {
  const long first_block = long(row) * to.n_blocks;
  kernels.quantize_q8(x, to.n_in, to.stride, to.q + long(row) * to.stride, to.scale + first_block,
                      to.sum + first_block);
}

inline Q8Layout q8_layout(int rows, int n_in) {
  const int stride = round_up(n_in, 64), n_blocks = stride / 32;
  const size_t q_bytes = size_t(rows) * stride;
  const size_t block_bytes = round_up(rows * n_blocks, 16) * size_t(4);
  return {stride, n_blocks, q_bytes, q_bytes + block_bytes, q_bytes + 2 * block_bytes};
}

}  // namespace lb::cpu
