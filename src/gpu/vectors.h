// Small aligned vectors: the units in which kernels read and write memory.
#pragma once

#include <stdint.h>

namespace lb::gpu {

template <class T, int kCount>
struct alignas(sizeof(T) * kCount) Vec {
  T v[kCount];
  LB_DEVICE constexpr T& operator[](int i) { return v[i]; }
  LB_DEVICE constexpr const T& operator[](int i) const { return v[i]; }
};

using u32x2 = Vec<uint32_t, 2>;
using u32x4 = Vec<uint32_t, 4>;
using i32x2 = Vec<int32_t, 2>;
using i32x4 = Vec<int32_t, 4>;
using f32x2 = Vec<float, 2>;
using f32x4 = Vec<float, 4>;

// Units of load() and store(): 1, 2, 4, 8 or 16 aligned bytes.
template <class V>
inline constexpr bool kIsAccess =
    (sizeof(V) == 1 || sizeof(V) == 2 || sizeof(V) == 4 || sizeof(V) == 8 || sizeof(V) == 16) &&
    alignof(V) == sizeof(V) && __is_trivially_copyable(V);

}  // namespace lb::gpu
