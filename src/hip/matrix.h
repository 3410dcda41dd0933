// A warp's 16x16x16 products C += A B^T with fp32 accumulators, one WMMA instruction each. With r = lane % 16,
// h = lane / 16:
//   gfx11  A, B  v[k] is (r, k), in both half-warps        C  v[i] is row 2i + h, column r
//   gfx12  A, B  v[k] is (r, 8h + k)                       C  v[i] is row i + 8h, column r
#pragma once

#include <stdint.h>

namespace lb::gpu {

inline constexpr bool kHasBf16Matrix = true;

#ifdef __GFX12__
inline constexpr int kLaneValues = 8;
#else
inline constexpr int kLaneValues = 16;
#endif

template <class T>
struct FragmentA {
  u32x4 r[kLaneValues / 8];  // kLaneValues of T
};
template <class T>
struct FragmentB {
  u32x4 r[kLaneValues / 8];
};
struct FragmentC {
  float __attribute__((ext_vector_type(8))) v;
};

LB_DEVICE void fill(FragmentC& c, float value) { c.v = value; }

// Rows start 16-byte aligned: stride counts values and is a multiple of 8.
template <class T>
LB_DEVICE void load_rows(u32x4* r, const T* from, int stride) {
  const T* row = from + lane() % 16 * stride;
#ifdef __GFX12__
  r[0] = load<u32x4>(row + lane() / 16 * 8);
#else
  r[0] = load<u32x4>(row);
  r[1] = load<u32x4>(row + 8);
#endif
}
template <class T>
LB_DEVICE void load(FragmentA<T>& a, const T* from, int stride) {
  load_rows(a.r, from, stride);
}
template <class T>
LB_DEVICE void load(FragmentB<T>& b, const T* from, int stride) {
  load_rows(b.r, from, stride);
}

typedef _Float16 HalfOperand __attribute__((ext_vector_type(kLaneValues)));
#ifdef __GFX12__
typedef __bf16 Bf16Operand __attribute__((ext_vector_type(8)));
#else
typedef short Bf16Operand __attribute__((ext_vector_type(16)));
#endif

LB_DEVICE void multiply(FragmentC& c, const FragmentA<f16>& a, const FragmentB<f16>& b) {
#ifdef __GFX12__
  c.v = __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12(__builtin_bit_cast(HalfOperand, a),
                                                         __builtin_bit_cast(HalfOperand, b), c.v);
#else
  c.v = __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(__builtin_bit_cast(HalfOperand, a),
                                                   __builtin_bit_cast(HalfOperand, b), c.v);
#endif
}
LB_DEVICE void multiply(FragmentC& c, const FragmentA<bf16>& a, const FragmentB<bf16>& b) {
#ifdef __GFX12__
  c.v = __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12(__builtin_bit_cast(Bf16Operand, a),
                                                          __builtin_bit_cast(Bf16Operand, b), c.v);
#else
  c.v = __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(__builtin_bit_cast(Bf16Operand, a),
                                                    __builtin_bit_cast(Bf16Operand, b), c.v);
#endif
}

template <class Visit>
LB_DEVICE void for_each(FragmentC& c, Visit&& visit) {
  LB_UNROLL
  for (int i = 0; i < 8; ++i) {
    float value = c.v[i];
#ifdef __GFX12__
    visit(i + lane() / 16 * 8, lane() % 16, value);
#else
    visit(2 * i + lane() / 16, lane() % 16, value);
#endif
    c.v[i] = value;
  }
}

}  // namespace lb::gpu
