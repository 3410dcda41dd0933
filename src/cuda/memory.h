// Loads and stores with cache hints, shared memory, asynchronous copies to shared memory.
// The read-only path (ld.global.nc) is for data that no thread of the launch writes. All asm is volatile, so that the
// compiler does not move it ahead of wait_for_previous().
#pragma once

#include <stdint.h>

namespace lb::gpu {

inline constexpr bool kHasScalarRegisters = false;  // a warp's common values, as addresses, have registers of their own
// Whether eight pieces of quantised rows fit a thread's 128 registers beside their sums. Elsewhere ptxas spills.
// Headers of every kernel ask for the chip by >= alone, or chips would not share PTX (ci/compile_object.py).
inline constexpr bool kHoldsEightPieces =
#if __CUDA_ARCH__ >= 900 && !(__CUDA_ARCH__ >= 1000)
    true;
#else
    false;
#endif
inline constexpr bool kReadsHostMemory = true;  // whether kernels may be given pointers to it
// Registers of a warp that ptxas uses for addresses and indices. Without them, a thread has fewer of its own to spare.
inline constexpr bool kHasUniformRegisters =
#if __CUDA_ARCH__ >= 750
    true;
#else
    false;
#endif
inline constexpr bool kHasAsyncCopy =
#if __CUDA_ARCH__ >= 800
    true;
#else
    false;
#endif

template <class T>
LB_DEVICE T* dynamic_shared() {
  extern __shared__ __align__(128) unsigned char lb_dynamic_shared[];
  return reinterpret_cast<T*>(lb_dynamic_shared);
}

LB_DEVICE void assume_shared(const void*) {}  // a hint that only src/hip needs

template <class V>
LB_DEVICE V load(const void* from) {
  static_assert(kIsAccess<V>);
  return *static_cast<const V*>(from);
}

template <class V>
LB_DEVICE void store(void* to, V value) {
  static_assert(kIsAccess<V>);
  *static_cast<V*>(to) = value;
}

// For data that is read once: allocates no L1 line.
template <class V>
LB_DEVICE V load_stream(const void* from) {
  static_assert(kIsAccess<V>);
  if constexpr (sizeof(V) == 16) {
    u32x4 r;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "l"(from));
    return __builtin_bit_cast(V, r);
  } else if constexpr (sizeof(V) == 8) {
    u32x2 r;
    asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];" : "=r"(r[0]), "=r"(r[1]) : "l"(from));
    return __builtin_bit_cast(V, r);
  } else if constexpr (sizeof(V) == 4) {
    uint32_t r;
    asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(r) : "l"(from));
    return __builtin_bit_cast(V, r);
  } else if constexpr (sizeof(V) == 2) {
    uint16_t r;
    asm volatile("ld.global.nc.L1::no_allocate.u16 %0, [%1];" : "=h"(r) : "l"(from));
    return __builtin_bit_cast(V, r);
  } else {
    uint16_t r;
    asm volatile("ld.global.nc.L1::no_allocate.u8 %0, [%1];" : "=h"(r) : "l"(from));
    return __builtin_bit_cast(V, uint8_t(r));
  }
}

// For data that this block or another one reads again soon.
template <class V>
LB_DEVICE V load_cached(const void* from) {
  static_assert(kIsAccess<V>);
  if constexpr (sizeof(V) == 16) {
    u32x4 r;
    asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "l"(from));
    return __builtin_bit_cast(V, r);
  } else if constexpr (sizeof(V) == 8) {
    u32x2 r;
    asm volatile("ld.global.nc.v2.u32 {%0, %1}, [%2];" : "=r"(r[0]), "=r"(r[1]) : "l"(from));
    return __builtin_bit_cast(V, r);
  } else if constexpr (sizeof(V) == 4) {
    uint32_t r;
    asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(r) : "l"(from));
    return __builtin_bit_cast(V, r);
  } else if constexpr (sizeof(V) == 2) {
    uint16_t r;
    asm volatile("ld.global.nc.u16 %0, [%1];" : "=h"(r) : "l"(from));
    return __builtin_bit_cast(V, r);
  } else {
    uint16_t r;
    asm volatile("ld.global.nc.u8 %0, [%1];" : "=h"(r) : "l"(from));
    return __builtin_bit_cast(V, uint8_t(r));
  }
}

// For data that this launch writes once and does not read.
template <class V>
LB_DEVICE void store_stream(void* to, V value) {
  static_assert(kIsAccess<V>);
  if constexpr (sizeof(V) == 16) {
    const u32x4 r = __builtin_bit_cast(u32x4, value);
    asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
                 : "memory");
  } else if constexpr (sizeof(V) == 8) {
    const u32x2 r = __builtin_bit_cast(u32x2, value);
    asm volatile("st.global.cs.v2.u32 [%0], {%1, %2};" ::"l"(to), "r"(r[0]), "r"(r[1]) : "memory");
  } else if constexpr (sizeof(V) == 4) {
    asm volatile("st.global.cs.u32 [%0], %1;" ::"l"(to), "r"(__builtin_bit_cast(uint32_t, value)) : "memory");
  } else if constexpr (sizeof(V) == 2) {
    asm volatile("st.global.cs.u16 [%0], %1;" ::"l"(to), "h"(__builtin_bit_cast(uint16_t, value)) : "memory");
  } else {
    asm volatile("st.global.cs.u8 [%0], %1;" ::"l"(to), "h"(uint16_t(__builtin_bit_cast(uint8_t, value))) : "memory");
  }
}

// Prefetches the surrounding 32 bytes to L1.
LB_DEVICE void prefetch(const void* global) { asm volatile("prefetch.global.L1 [%0];" ::"l"(global)); }

#if __CUDA_ARCH__ >= 800
template <int kBytes>
LB_DEVICE void copy_async(void* shared, const void* global) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16);
  const uint32_t to = uint32_t(__cvta_generic_to_shared(shared));
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(global) : "memory");  // bypasses L1
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(global), "n"(kBytes) : "memory");
  }
}
// Writes zeros when is_there is false.
template <int kBytes>
LB_DEVICE void copy_async_or_zero(void* shared, const void* global, bool is_there) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16);
  const uint32_t to = uint32_t(__cvta_generic_to_shared(shared)), bytes = is_there ? kBytes : 0;
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(bytes) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %3, %2;" ::"r"(to), "l"(global), "r"(bytes), "n"(kBytes)
                 : "memory");
  }
}
LB_DEVICE void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kPending>
LB_DEVICE void copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}
#else
template <int kBytes>
LB_DEVICE void copy_async(void* shared, const void* global) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16);
  using V = Vec<uint32_t, kBytes / 4>;
  *static_cast<V*>(shared) = *static_cast<const V*>(global);
}
template <int kBytes>
LB_DEVICE void copy_async_or_zero(void* shared, const void* global, bool is_there) {
  using V = Vec<uint32_t, kBytes / 4>;
  *static_cast<V*>(shared) = is_there ? *static_cast<const V*>(global) : V{};
}
LB_DEVICE void copy_commit() {}
template <int kPending>
LB_DEVICE void copy_wait() {}
#endif

}  // namespace lb::gpu
