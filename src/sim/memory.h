// Checked loads and stores. An asynchronous copy executes in copy_wait, so that a premature read yields stale data.
#pragma once

#include <cstring>

namespace lb::gpu {

inline constexpr bool kHasScalarRegisters = false;  // a warp's common values, as addresses, have registers of their own
inline constexpr bool kHoldsEightPieces = true;
inline constexpr bool kReadsHostMemory = true;  // whether kernels may be given pointers to it
inline constexpr bool kHasUniformRegisters = true;
inline constexpr bool kHasAsyncCopy = true;

inline void assume_shared(const void* p) {
  if (!sim::current->block->shared.contains(p)) sim::machine().fail("assume_shared takes shared memory, got %p", p);
}

template <class V>
V load(const void* from) {
  static_assert(kIsAccess<V>);
  sim::check_access(from, sizeof(V), sim::Access::kRead, "load");
  V v;
  std::memcpy(&v, from, sizeof v);
  return v;
}

template <class V>
void store(void* to, V value) {
  static_assert(kIsAccess<V>);
  sim::check_access(to, sizeof(V), sim::Access::kWrite, "store");
  std::memcpy(to, &value, sizeof value);
}

template <class V>
V load_stream(const void* from) {
  static_assert(kIsAccess<V>);
  sim::check_global(from, sizeof(V), "load_stream");
  return load<V>(from);
}

template <class V>
V load_cached(const void* from) {
  static_assert(kIsAccess<V>);
  sim::check_global(from, sizeof(V), "load_cached");
  return load<V>(from);
}

template <class V>
void store_stream(void* to, V value) {
  static_assert(kIsAccess<V>);
  sim::check_global(to, sizeof(V), "store_stream");
  store(to, value);
}

inline void prefetch(const void* global) { sim::check_global(global, 4, "prefetch"); }

template <int kBytes>
void copy_async(void* shared, const void* global) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16);
  sim::check_global(global, kBytes, "copy_async");
  if (!sim::current->block->shared.contains(shared))
    sim::machine().fail("copy_async writes shared memory, got %p", shared);
  sim::check_access(shared, kBytes, sim::Access::kWrite, "copy_async");
  sim::current->copies.push_back({shared, global, kBytes, sim::current->n_groups});
}
template <int kBytes>
void copy_async_or_zero(void* shared, const void* global, bool is_there) {
  if (is_there)
    copy_async<kBytes>(shared, global);
  else
    store(shared, Vec<uint32_t, kBytes / 4>{});
}
inline void copy_commit() { ++sim::current->n_groups; }
template <int kPending>
void copy_wait() {
  sim::finish_copies(kPending);
}

}  // namespace lb::gpu
