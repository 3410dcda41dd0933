// A warp's 16x16x16 products C += A B^T with fp32 accumulators, from mma.sync (m16n8k16; m16n8k8 on sm_75).
// With g = lane / 4 and t = lane % 4, a register has two consecutive values of k:
//   A  r[0] (g, 2t)   r[1] (g + 8, 2t)   r[2] (g, 2t + 8)   r[3] (g + 8, 2t + 8)
//   B  r[0] (g, 2t)   r[1] (g, 2t + 8)   r[2] (g + 8, 2t)   r[3] (g + 8, 2t + 8)        B is [n, k]
//   C  v[4h + 2i + j] is row g + 8i, column 8h + 2t + j
#pragma once

#include <stdint.h>

namespace lb::gpu {

inline constexpr bool kHasBf16Matrix =
#if __CUDA_ARCH__ >= 800
    true;
#else
    false;
#endif

template <class T>
struct FragmentA {
  uint32_t r[4];
};
template <class T>
struct FragmentB {
  uint32_t r[4];
};
struct FragmentC {
  float v[8];
};

LB_DEVICE void fill(FragmentC& c, float value) {
  LB_UNROLL
  for (int i = 0; i < 8; ++i) c.v[i] = value;
}

// Rows start 16-byte aligned: stride counts values and is a multiple of 8.
template <class T>
LB_DEVICE void load(FragmentA<T>& a, const T* from, int stride) {
  const T* row = from + lane() / 4 * stride + lane() % 4 * 2;
  a.r[0] = load<uint32_t>(row);
  a.r[1] = load<uint32_t>(row + 8 * stride);
  a.r[2] = load<uint32_t>(row + 8);
  a.r[3] = load<uint32_t>(row + 8 * stride + 8);
}

template <class T>
LB_DEVICE void load(FragmentB<T>& b, const T* from, int stride) {
  const T* row = from + lane() / 4 * stride + lane() % 4 * 2;
  b.r[0] = load<uint32_t>(row);
  b.r[1] = load<uint32_t>(row + 8);
  b.r[2] = load<uint32_t>(row + 8 * stride);
  b.r[3] = load<uint32_t>(row + 8 * stride + 8);
}

#if __CUDA_ARCH__ >= 800
LB_DEVICE void multiply_half(float* c, const FragmentA<f16>& a, const uint32_t* b) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "r"(b[0]), "r"(b[1]));
}
LB_DEVICE void multiply_half(float* c, const FragmentA<bf16>& a, const uint32_t* b) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "r"(b[0]), "r"(b[1]));
}
#else
LB_DEVICE void multiply_half(float* c, const FragmentA<f16>& a, const uint32_t* b) {
  LB_UNROLL
  for (int half = 0; half < 2; ++half) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a.r[2 * half]), "r"(a.r[2 * half + 1]), "r"(b[half]));
  }
}
#endif

template <class T>
LB_DEVICE void multiply(FragmentC& c, const FragmentA<T>& a, const FragmentB<T>& b) {
  multiply_half(c.v, a, b.r);
  multiply_half(c.v + 4, a, b.r + 2);
}

template <class Visit>
LB_DEVICE void for_each(FragmentC& c, Visit&& visit) {
  LB_UNROLL
  for (int i = 0; i < 8; ++i) visit(lane() / 4 + i / 2 % 2 * 8, i / 4 * 8 + lane() % 4 * 2 + i % 2, c.v[i]);
}

}  // namespace lb::gpu
