// A thin layer over the compiler's vector types: vf has kLanes floats, 16 (AVX-512), 8 (AVX2) or 4.
// Bodies use the plain operators; this file adds the rest. Everything has internal linkage (see kernels.h).
#pragma once

#include <cstdint>

#include "quant/half.h"

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace lb::cpu {
namespace {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

typedef float vf __attribute__((vector_size(4 * kLanes)));
typedef int32_t vi __attribute__((vector_size(4 * kLanes)));  // also the result of comparing two vf: 0 or -1 per lane

constexpr float kInfinity = __builtin_inff();

inline vf splat(float x) { return x - vf{}; }
inline vi splat(int32_t x) { return x - vi{}; }

inline vi lane_index() {
  vi index;
  for (int i = 0; i < kLanes; ++i) index[i] = i;
  return index;
}

inline vf load(const float* p) {
  vf x;
  __builtin_memcpy(&x, p, sizeof x);
  return x;
}

inline void store(float* p, vf x) { __builtin_memcpy(p, &x, sizeof x); }

// Loads the first n lanes and zeroes the rest; n >= kLanes loads the whole vector.
inline vf load(const float* p, int n) {
  if (n >= kLanes) return load(p);
#if defined(__AVX512F__)
  return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << n) - 1), p);
#else
  vf x = {};
  for (int i = 0; i < n; ++i) x[i] = p[i];
  return x;
#endif
}

inline void store(float* p, vf x, int n) {
  if (n >= kLanes) return store(p, x);
#if defined(__AVX512F__)
  _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1u << n) - 1), x);
#else
  for (int i = 0; i < n; ++i) p[i] = x[i];
#endif
}

// a * b + c, rounded once on machines with a fused multiply-add.
inline vf fma(vf a, vf b, vf c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(__AVX2__)
  return _mm256_fmadd_ps(a, b, c);
#elif defined(__aarch64__)
  return vfmaq_f32(c, a, b);
#else
  return a * b + c;
#endif
}

inline vf max(vf a, vf b) { return a > b ? a : b; }

// Adds the lanes pairwise by halves, always in the same order.
inline float hsum(vf x) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps(x);
#elif defined(__AVX2__)
  __m128 sum = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
  return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
#else
  float lanes[kLanes];
  store(lanes, x);
  for (int n = kLanes / 2; n > 0; n /= 2)
    for (int i = 0; i < n; ++i) lanes[i] += lanes[i + n];
  return lanes[0];
#endif
}

inline float hmax(vf x) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps(x);
#else
  float largest = x[0];
  for (int i = 1; i < kLanes; ++i) largest = x[i] > largest ? x[i] : largest;
  return largest;
#endif
}

template <int... kLane>
struct LaneIndices {};
#if defined(__AVX512F__)
constexpr LaneIndices<0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15> kAllLanes;
#elif defined(__AVX2__)
constexpr LaneIndices<0, 1, 2, 3, 4, 5, 6, 7> kAllLanes;
#else
constexpr LaneIndices<0, 1, 2, 3> kAllLanes;
#endif

// Interleaves the lanes of a and b, from lane kFirst on.
template <int kFirst, int... kLane>
inline vf interleave(vf a, vf b, LaneIndices<kLane...>) {
  return __builtin_shufflevector(a, b, (kFirst + kLane / 2 + kLane % 2 * kLanes)...);
}

// x[i][j] <-> x[j][i]
inline void transpose(vf* x) {
  for (int stage = 1; stage < kLanes; stage *= 2) {
    vf y[kLanes];
    for (int i = 0; i < kLanes / 2; ++i) {
      y[2 * i] = interleave<0>(x[i], x[i + kLanes / 2], kAllLanes);
      y[2 * i + 1] = interleave<kLanes / 2>(x[i], x[i + kLanes / 2], kAllLanes);
    }
    for (int i = 0; i < kLanes; ++i) x[i] = y[i];
  }
}

// e^x to 2 ulp, including subnormal results. x = n ln2 + r with |r| <= ln2 / 2; e^r is the Taylor polynomial to r^7
// (remainder below 1e-8). 2^n is split into two factors, so that both are normal numbers.
inline vf exp(vf x) {
  x = x < -104.0f ? splat(-104.0f) : x;  // NaN compares false and passes
  x = x > 89.0f ? splat(89.0f) : x;
  const vf shifted = fma(x, splat(1.44269504f), splat(0x1.8p23f));  // adding 1.5 * 2^23 rounds to an integer
  const vf n = shifted - 0x1.8p23f;
  vf r = fma(n, splat(-0.693359375f), x);  // ln2 in two parts; n times the first is exact
  r = fma(n, splat(2.12194440e-4f), r);
  vf p = splat(1.0f / 5040);
  p = fma(p, r, splat(1.0f / 720));
  p = fma(p, r, splat(1.0f / 120));
  p = fma(p, r, splat(1.0f / 24));
  p = fma(p, r, splat(1.0f / 6));
  p = fma(p, r, splat(0.5f));
  p = fma(p * r, r, r) + 1.0f;
  const vi power = __builtin_bit_cast(vi, shifted) - __builtin_bit_cast(int32_t, 0x1.8p23f);
  const vi half = power >> 1;
  return p * __builtin_bit_cast(vf, (half + 127) << 23) * __builtin_bit_cast(vf, (power - half + 127) << 23);
}

inline vf sigmoid(vf x) { return 1.0f / (1.0f + exp(-x)); }
inline vf silu(vf x) { return x * sigmoid(x); }

// Storage types of 16-bit floats, so that templates cover the three types of the KV cache.
struct Half {
  uint16_t bits;
};
struct BFloat {
  uint16_t bits;
};

inline vf load(const Half* p) {
#if defined(__AVX512F__)
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
#elif defined(__AVX2__)
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#else
  vf x;
  for (int i = 0; i < kLanes; ++i) x[i] = quant::f16_to_f32(p[i].bits);
  return x;
#endif
}

inline vf load(const BFloat* p) {
  typedef uint16_t vh __attribute__((vector_size(2 * kLanes)));
  vh bits;
  __builtin_memcpy(&bits, p, sizeof bits);
  return __builtin_bit_cast(vf, __builtin_convertvector(bits, vi) << 16);
}

inline vf load(const Half* p, int n) {
  if (n >= kLanes) return load(p);
  vf x = {};
  for (int i = 0; i < n; ++i) x[i] = quant::f16_to_f32(p[i].bits);
  return x;
}

inline vf load(const BFloat* p, int n) {
  if (n >= kLanes) return load(p);
  vf x = {};
  for (int i = 0; i < n; ++i) x[i] = quant::bf16_to_f32(p[i].bits);
  return x;
}

inline void narrow(float* to, const float* from, int n) { __builtin_memcpy(to, from, n * sizeof(float)); }

inline void narrow(BFloat* to, const float* from, int n) {
  for (int i = 0; i < n; ++i) to[i].bits = quant::f32_to_bf16(from[i]);
}

inline void narrow(Half* to, const float* from, int n) {
  int i = 0;
#if defined(__AVX2__)
  for (; i + 8 <= n; i += 8)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i),
                     _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT));
#endif
  for (; i < n; ++i) to[i].bits = quant::f32_to_f16(from[i]);
}

}  // namespace
}  // namespace lb::cpu
