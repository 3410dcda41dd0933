// NVRTC only, included before each kernel source: the builtins of GCC, Clang and nvcc's host compiler that the shared
// headers use and NVRTC lacks.
#pragma once

#define __builtin_fmaf fmaf
#define __builtin_inff() __builtin_bit_cast(float, 0x7f800000u)

namespace lb {
template <class A, class B>
inline constexpr bool kIsSame = false;
template <class A>
inline constexpr bool kIsSame<A, A> = true;
}  // namespace lb
#define __is_same(A, B) lb::kIsSame<A, B>
