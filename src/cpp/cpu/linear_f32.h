// Linear products in fp32. F16, BF16 and FP8 weights are converted in registers, or in scratch with more than 4
// activation rows. Block weights are dequantised to fp32 in scratch. Register tile: 4 weight rows x up to 4 activation
// rows of dot products, 8 loads per 16 multiply-adds, one horizontal sum per output. A GEMV is bound by the bytes of
// the weights, a GEMM by multiply-adds. The order of additions of an output depends on n_in alone.
#pragma once

#include "cpu/kernels.h"
#include "cpu/simd.h"
#include "quant/rows.h"

namespace lb::cpu {
namespace {

constexpr int kTileRows = 4;               // weight rows of a tile
constexpr long kPrefetchAhead = 16 << 10;  // bytes; a BF16 GEMV reads 23 GB/s per core, 13 GB/s without prefetch
constexpr long kBlockX = 96 << 10;         // values of x per pass over the weights: 384 KiB, which stay in L2

// Values [k, k + lanes) of a weight row, and their address.
template <class W>
vf weights_at(const W* row, int k, int lanes) {
  return load(row + k, lanes);
}
template <class W>
const char* address_of(const W* row, int k) {
  return reinterpret_cast<const char*>(row + k);
}
// quant::dequantize_blocks; a block's values are whole vectors.
inline vf weights_at(const quant::BlockF8* row, int k, int) {
  static_assert(quant::BlockF8::kValues % kLanes == 0);
  typedef uint8_t vc __attribute__((vector_size(kLanes)));
  const quant::BlockF8& block = row[k / quant::BlockF8::kValues];
  vc codes;
  __builtin_memcpy(&codes, block.q + k % quant::BlockF8::kValues, sizeof codes);
  const vi wide = __builtin_convertvector(codes, vi);
  return __builtin_bit_cast(vf, (wide & 0x80) << 24 | (wide & 0x7f) << 20) * 0x1p120f * block.scale;
}
inline const char* address_of(const quant::BlockF8* row, int k) {
  return reinterpret_cast<const char*>(row[k / quant::BlockF8::kValues].q + k % quant::BlockF8::kValues);
}

// Computes outputs [r0, r0 + kR) x [o, o + n) of op; w points to the kTileRows weight rows.
template <class W, int kR>
void tile_f32(const Linear& op, const W* const* w, int o, int n, int r0) {
  const float* x = op.x + long(r0) * op.n_in;
  vf acc[kTileRows][kR] = {};
  const auto step = [&](int k, int lanes) {
    vf a[kR];
    for (int r = 0; r < kR; ++r) a[r] = load(x + long(r) * op.n_in + k, lanes);
    for (int i = 0; i < kTileRows; ++i) {
      if constexpr (kR == 1) __builtin_prefetch(address_of(w[i], k) + kPrefetchAhead);
      const vf b = weights_at(w[i], k, lanes);
      for (int r = 0; r < kR; ++r) acc[i][r] = fma(a[r], b, acc[i][r]);
    }
  };
  int k = 0;
  for (; k + kLanes <= op.n_in; k += kLanes) step(k, kLanes);
  if (k < op.n_in) step(k, op.n_in - k);
  for (int i = 0; i < n; ++i) {
    for (int r = 0; r < kR; ++r) {
      const long at = long(r0 + r) * op.n_out + o + i;
      op.y[at] = hsum(acc[i][r]) + (op.add ? op.add[at] : 0.0f);
    }
  }
}

template <class W>
void tiles_f32(const Linear& op, const W* const* w, int o, int n, int row_begin, int row_end) {
  int r = row_begin;
  for (; r + 4 <= row_end; r += 4) tile_f32<W, 4>(op, w, o, n, r);
  switch (row_end - r) {
    case 1: tile_f32<W, 1>(op, w, o, n, r); break;
    case 2: tile_f32<W, 2>(op, w, o, n, r); break;
    case 3: tile_f32<W, 3>(op, w, o, n, r); break;
  }
}

// row(i, o) returns weight row o, which becomes row i of the tile.
template <class W, class Row>
void linear_f32_rows(const Linear& op, int begin, int end, Row&& row) {
  const long fit = kBlockX / op.n_in / 4 * 4;
  const int step = fit < 8 ? 8 : fit > op.rows ? op.rows : int(fit);
  for (int r = 0; r < op.rows; r += step) {
    const int row_end = r + step < op.rows ? r + step : op.rows;
    for (int o = begin; o < end; o += kTileRows) {
      const int n = end - o < kTileRows ? end - o : kTileRows;
      const W* w[kTileRows];
      for (int i = 0; i < kTileRows; ++i) w[i] = i < n ? row(i, o + i) : w[0];
      tiles_f32(op, w, o, n, r, row_end);
    }
  }
}

template <class W>
void linear_f32_plain(const Linear& op, int begin, int end, float* dequantized) {
  const W* w = static_cast<const W*>(op.w);
  if (sizeof(W) == sizeof(float) || op.rows <= 4)
    return linear_f32_rows<W>(op, begin, end, [&](int, long o) { return w + o * op.n_in; });
  linear_f32_rows<float>(op, begin, end, [&](int i, long o) {  // converts each weight once, not once per tile
    float* y = dequantized + long(i) * op.n_in;
    for (int k = 0; k < op.n_in; k += kLanes) store(y + k, load(w + o * op.n_in + k, op.n_in - k), op.n_in - k);
    return y;
  });
}

template <class Block>
void linear_f32_blocks(const Linear& op, int begin, int end, float* dequantized) {
  linear_f32_rows<float>(op, begin, end, [&](int i, long o) {
    float* y = dequantized + long(i) * op.n_in;
    quant::dequantize_blocks(quant::row_blocks<Block>(op.w, o, op.n_in), y, op.n_in);
    return y;
  });
}

void linear_f32_f8(const Linear& op, int begin, int end, float* dequantized) {
  if (op.rows > 4) return linear_f32_blocks<quant::BlockF8>(op, begin, end, dequantized);
  linear_f32_rows<quant::BlockF8>(op, begin, end,
                                  [&](int, long o) { return quant::row_blocks<quant::BlockF8>(op.w, o, op.n_in); });
}

void linear_f32(const Linear& op, int begin, int end, std::byte* scratch) {
  float* dequantized = reinterpret_cast<float*>(scratch);
  switch (op.type) {
    case DType::kF32: return linear_f32_plain<float>(op, begin, end, dequantized);
    case DType::kF16: return linear_f32_plain<Half>(op, begin, end, dequantized);
    case DType::kBF16: return linear_f32_plain<BFloat>(op, begin, end, dequantized);
    case DType::kF8_E4M3: return linear_f32_f8(op, begin, end, dequantized);
    default:
      quant::visit_block(op.type, [&](auto tag) { linear_f32_blocks<decltype(tag)>(op, begin, end, dequantized); });
  }
}

}  // namespace
}  // namespace lb::cpu
