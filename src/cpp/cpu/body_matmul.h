// C (+)= A B for the small fp32 products inside attention and Gated DeltaNet. A register tile has kBlockRows rows and
// kBlockVectors vectors of columns. Each value is one chain of multiply-adds in the order of the steps, so a value does
// not depend on its tile or on the number of rows and columns.
#pragma once

#include "cpu/simd.h"

namespace lb::cpu {
namespace {

// c[i,j] = keep * c[i,j] + sum_t a[i * a_row + t * a_step] * b[t * b_step + j]; keep == nullptr: starts from zero.
template <class T>
struct Product {
  const float* a;
  long a_row, a_step;
  const T* b;
  long b_step;
  float* c;
  long c_row;
  int rows, cols, steps;
  const float* keep;
};

// 24 accumulators use 24 of 32 registers (AVX-512), 12 use 12 of 16.
constexpr int kBlockRows = 6;
#if defined(__AVX512F__)
constexpr int kBlockVectors = 4;
#else
constexpr int kBlockVectors = 2;
#endif
// Rows of B per panel. One tile of columns of a panel is at most 32 KiB, so it stays in L1 for all rows of A.
constexpr int kPanelSteps = 128;

// Computes rows [i, i + kRows) and columns [j, j + n); n is at most kVectors vectors, and the last may be partial.
template <int kRows, int kVectors, class T>
inline void multiply_block(const Product<T>& p, int i, int j, int n) {
  vf sum[kRows][kVectors];
  float* c = p.c + i * p.c_row + j;
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kVectors; ++v)
      sum[r][v] = p.keep ? *p.keep * load(c + r * p.c_row + v * kLanes, n - v * kLanes) : vf{};
  const float* a = p.a + i * p.a_row;
  const T* b = p.b + j;
  for (int t = 0; t < p.steps; ++t, a += p.a_step, b += p.b_step) {
    vf right[kVectors];
    for (int v = 0; v < kVectors; ++v) right[v] = load(b + v * kLanes, n - v * kLanes);
    for (int r = 0; r < kRows; ++r) {
      const vf left = splat(a[r * p.a_row]);
      for (int v = 0; v < kVectors; ++v) sum[r][v] = fma(left, right[v], sum[r][v]);
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kVectors; ++v) store(c + r * p.c_row + v * kLanes, sum[r][v], n - v * kLanes);
}

template <int kVectors, class T>
inline void multiply_panel(const Product<T>& p, int j, int n) {
  int i = 0;
  for (; i + kBlockRows <= p.rows; i += kBlockRows) multiply_block<kBlockRows, kVectors>(p, i, j, n);
  if (i + 4 <= p.rows) multiply_block<4, kVectors>(p, i, j, n), i += 4;
  if (i + 2 <= p.rows) multiply_block<2, kVectors>(p, i, j, n), i += 2;
  if (i < p.rows) multiply_block<1, kVectors>(p, i, j, n);
}

template <int kVectors, class T>
inline void multiply_columns(Product<T> p, int j, int n) {
  const float one = 1;
  for (int left = p.steps; left > kPanelSteps; left -= kPanelSteps) {
    p.steps = kPanelSteps;
    multiply_panel<kVectors>(p, j, n);
    p.a += kPanelSteps * p.a_step;
    p.b += kPanelSteps * p.b_step;
    p.keep = &one;
    p.steps = left - kPanelSteps;
  }
  multiply_panel<kVectors>(p, j, n);
}

template <class T>
inline void multiply(const Product<T>& p) {
  constexpr int kWide = kBlockVectors * kLanes;
  int j = 0;
  // A constant n lets the compiler drop the partial loads.
  for (; j + kWide <= p.cols; j += kWide) multiply_columns<kBlockVectors>(p, j, kWide);
  for (; j + kLanes <= p.cols; j += kLanes) multiply_columns<1>(p, j, kLanes);
  if (j < p.cols) multiply_columns<1>(p, j, p.cols - j);
}

}  // namespace
}  // namespace lb::cpu
