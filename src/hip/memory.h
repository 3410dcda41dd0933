// Loads and stores with cache hints, shared memory, copies to shared memory. The casts to the global address space make
// the compiler emit global_load instead of flat_load where it cannot infer the address space.
#pragma once

#include <stdint.h>

namespace lb::gpu {

inline constexpr bool kHasScalarRegisters = true;  // a warp's common values, as addresses, have registers of their own
inline constexpr bool kHoldsEightPieces = false;
inline constexpr bool kReadsHostMemory = false;  // whether kernels may be given pointers to it
inline constexpr bool kHasUniformRegisters = true;
inline constexpr bool kHasAsyncCopy = false;

template <class T>
LB_DEVICE T* dynamic_shared() {
  extern __attribute__((shared, aligned(128))) unsigned char lb_dynamic_shared[];
  return reinterpret_cast<T*>(lb_dynamic_shared);
}

// Tells the compiler that p points to shared memory, which it cannot infer in a function that is not inlined.
LB_DEVICE void assume_shared(const void* p) { __builtin_assume(__builtin_amdgcn_is_shared(p)); }

// The compiler's type for an access of kBytes bytes; non-temporal builtins accept no other types.
template <int kBytes>
struct Access;
template <>
struct Access<1> {
  typedef uint8_t type;
};
template <>
struct Access<2> {
  typedef uint16_t type;
};
template <>
struct Access<4> {
  typedef uint32_t type;
};
template <>
struct Access<8> {
  typedef uint32_t type __attribute__((ext_vector_type(2)));
};
template <>
struct Access<16> {
  typedef uint32_t type __attribute__((ext_vector_type(4)));
};
template <class V>
using Global = __attribute__((address_space(1))) typename Access<int(sizeof(V))>::type;

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

// For data that is read once.
template <class V>
LB_DEVICE V load_stream(const void* from) {
  static_assert(kIsAccess<V>);
  return __builtin_bit_cast(V, __builtin_nontemporal_load((const Global<V>*)(from)));
}

// For data that this block or another one reads again soon.
template <class V>
LB_DEVICE V load_cached(const void* from) {
  static_assert(kIsAccess<V>);
  return __builtin_bit_cast(V, *(const Global<V>*)(from));
}

// For data that this launch writes once and does not read.
template <class V>
LB_DEVICE void store_stream(void* to, V value) {
  static_assert(kIsAccess<V>);
  __builtin_nontemporal_store(__builtin_bit_cast(typename Access<int(sizeof(V))>::type, value), (Global<V>*)(to));
}

// Prefetches the surrounding cache line.
LB_DEVICE void prefetch(const void* global) { __builtin_prefetch(global); }

// No asynchronous copies: a copy is a load and a store. Loads overlap until their stores need them; block_barrier
// orders the stores.
template <int kBytes>
LB_DEVICE void copy_async(void* shared, const void* global) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16);
  using V = Vec<uint32_t, kBytes / 4>;
  store(shared, load_cached<V>(global));
}
LB_DEVICE void copy_commit() {}
template <int kPending>
LB_DEVICE void copy_wait() {}

}  // namespace lb::gpu
