// Products in fp32: F32, F16 and BF16 weights converted in registers, block weights expanded to fp32 in scratch.
// Register tile: 4 weight rows x up to 4 activation rows of dot products, 8 loads for 16 multiply-adds; the horizontal
// sums come once a row. One row is bound by the bytes of the weights, many rows by multiply-adds.
// The order of additions of an output depends on n_in alone.
#pragma once

#include "cpu/kernels.h"
#include "quant/decode.h"
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace lb::cpu {
namespace {

struct F16 {
  uint16_t bits;
};
struct BF16 {
  uint16_t bits;
};
float to_f32(float v) { return v; }
float to_f32(F16 v) { return f16_to_f32(v.bits); }
float to_f32(BF16 v) { return bf16_to_f32(v.bits); }

#if defined(__AVX512F__)
constexpr int kWide = 16;
using Wide = __m512;
Wide wide_zero() { return _mm512_setzero_ps(); }
Wide wide_load(const float* p) { return _mm512_loadu_ps(p); }
Wide wide_load(const F16* p) { return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
Wide wide_load(const BF16* p) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}
Wide wide_fma(Wide a, Wide b, Wide c) { return _mm512_fmadd_ps(a, b, c); }
void wide_store(float* p, Wide v) { _mm512_storeu_ps(p, v); }
#elif defined(__AVX2__)
constexpr int kWide = 8;
using Wide = __m256;
Wide wide_zero() { return _mm256_setzero_ps(); }
Wide wide_load(const float* p) { return _mm256_loadu_ps(p); }
Wide wide_load(const F16* p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
Wide wide_load(const BF16* p) {
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
Wide wide_fma(Wide a, Wide b, Wide c) { return _mm256_fmadd_ps(a, b, c); }
void wide_store(float* p, Wide v) { _mm256_storeu_ps(p, v); }
#else
constexpr int kWide = 8;
struct Wide {
  float v[kWide];
};
Wide wide_zero() { return {}; }
template <class W>
Wide wide_load(const W* p) {
  Wide out;
  for (int l = 0; l < kWide; ++l) out.v[l] = to_f32(p[l]);
  return out;
}
Wide wide_fma(Wide a, Wide b, Wide c) {
  for (int l = 0; l < kWide; ++l) c.v[l] += a.v[l] * b.v[l];
  return c;
}
void wide_store(float* p, Wide v) {
  for (int l = 0; l < kWide; ++l) p[l] = v.v[l];
}
#endif

float wide_sum(Wide v) {
  float lanes[kWide];
  wide_store(lanes, v);
  for (int half = kWide / 2; half > 0; half /= 2)
    for (int l = 0; l < half; ++l) lanes[l] += lanes[l + half];
  return lanes[0];
}

constexpr int kTileRows = 4;     // weight rows of a tile
constexpr long kBlockX = 96 << 10;  // values of x a pass over the weights keeps in the second-level cache: 384 KiB

// Outputs (r0 .. r0 + kR) x (o .. o + n) of op; w: the kTileRows weight rows.
template <class W, int kR>
void tile_f32(const Linear& op, const W* const* w, int o, int n, int r0) {
  const float* x = op.x + long(r0) * op.n_in;
  Wide acc[kTileRows][kR];
  for (int i = 0; i < kTileRows; ++i)
    for (int r = 0; r < kR; ++r) acc[i][r] = wide_zero();
  int k = 0;
  for (; k + kWide <= op.n_in; k += kWide) {
    Wide a[kR];
    for (int r = 0; r < kR; ++r) a[r] = wide_load(x + long(r) * op.n_in + k);
    for (int i = 0; i < kTileRows; ++i) {
      const Wide b = wide_load(w[i] + k);
      for (int r = 0; r < kR; ++r) acc[i][r] = wide_fma(a[r], b, acc[i][r]);
    }
  }
  for (int i = 0; i < n; ++i) {
    for (int r = 0; r < kR; ++r) {
      float sum = wide_sum(acc[i][r]);
      for (int j = k; j < op.n_in; ++j) sum += to_f32(w[i][j]) * x[long(r) * op.n_in + j];
      const long at = long(r0 + r) * op.n_out + o + i;
      op.y[at] = sum + (op.add ? op.add[at] : 0.0f);
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

// row(i, o) gives weight row o, for slot i of the tile.
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
void linear_f32_plain(const Linear& op, int begin, int end) {
  const W* w = static_cast<const W*>(op.w);
  linear_f32_rows<W>(op, begin, end, [&](int, long o) { return w + o * op.n_in; });
}

template <class Block>
void linear_f32_blocks(const Linear& op, int begin, int end, float* expanded) {
  const long blocks_per_row = op.n_in / Block::kValues;
  const Block* w = static_cast<const Block*>(op.w);
  linear_f32_rows<float>(op, begin, end, [&](int i, long o) {
    float* y = expanded + long(i) * op.n_in;
    for (long b = 0; b < blocks_per_row; ++b) expand(w[o * blocks_per_row + b], y + b * Block::kValues);
    return y;
  });
}

void linear_f32(const Linear& op, int begin, int end, std::byte* scratch) {
  switch (op.type) {
    case DType::kF32: return linear_f32_plain<float>(op, begin, end);
    case DType::kF16: return linear_f32_plain<F16>(op, begin, end);
    case DType::kBF16: return linear_f32_plain<BF16>(op, begin, end);
    default:
      visit_block(op.type, [&](auto tag) {
        linear_f32_blocks<decltype(tag)>(op, begin, end, reinterpret_cast<float*>(scratch));
      });
  }
}

}  // namespace
}  // namespace lb::cpu
