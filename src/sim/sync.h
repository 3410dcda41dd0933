// Barriers, atomics, reductions of warps and blocks.
#pragma once

namespace lb::gpu {

inline void block_barrier(sim::Location where = sim::Location::current()) {
  sim::machine().arrive_at_block({"block_barrier", where}, n_threads());
}
inline void whole_block_barrier(sim::Location where = sim::Location::current()) {
  sim::machine().arrive_at_block({"whole_block_barrier", where}, n_threads() + sim::current->block->n_helpers);
}
inline void warp_barrier(sim::Location where = sim::Location::current()) { sim::exchange(0, {"warp_barrier", where}); }
inline void grid_barrier(uint32_t* counter, sim::Location where = sim::Location::current()) {
  sim::machine().arrive_at_grid(counter, {"grid_barrier", where});
}

namespace sim {

// An atomic read-modify-write by compare-and-swap, so that launches on several OS threads may share a counter.
template <class T, class Change>
T update(T* p, Change change) {
  check_access(p, sizeof(T), Access::kAtomic, "atomic");
  T before, after;
  __atomic_load(p, &before, __ATOMIC_RELAXED);
  do after = change(before);
  while (!__atomic_compare_exchange(p, &before, &after, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
  return before;
}
template <class T>
T update_max(T* p, T v) {
  return update(p, [v](T x) { return x > v ? x : v; });
}

}  // namespace sim

inline int atomic_add(int* p, int v) {
  return sim::update(p, [v](int x) { return int(uint32_t(x) + uint32_t(v)); });
}
inline uint32_t atomic_add(uint32_t* p, uint32_t v) {
  return sim::update(p, [v](uint32_t x) { return x + v; });
}
inline unsigned long long atomic_add(unsigned long long* p, unsigned long long v) {
  return sim::update(p, [v](unsigned long long x) { return x + v; });
}
inline float atomic_add(float* p, float v) {
  return sim::update(p, [v](float x) { return x + v; });
}
inline uint32_t atomic_add_ordered(uint32_t* p, uint32_t v) { return atomic_add(p, v); }
inline int atomic_max(int* p, int v) { return sim::update_max(p, v); }
inline uint32_t atomic_max(uint32_t* p, uint32_t v) { return sim::update_max(p, v); }
inline unsigned long long atomic_max(unsigned long long* p, unsigned long long v) { return sim::update_max(p, v); }

// Lets the other threads run first, so that a spin ends. A spin is reported if no thread can change the value.
inline uint32_t load_acquire(const uint32_t* p, sim::Location where = sim::Location::current()) {
  sim::check_global(p, sizeof *p, "load_acquire");
  sim::machine().spin(p, __atomic_load_n(p, __ATOMIC_ACQUIRE), {"load_acquire", where});
  return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}
inline void store_release(uint32_t* p, uint32_t v) {
  sim::check_global(p, sizeof *p, "store_release");
  __atomic_store_n(p, v, __ATOMIC_RELEASE);
}
inline void add_release(uint32_t* p, uint32_t v) {
  sim::check_global(p, sizeof *p, "add_release");
  __atomic_fetch_add(p, v, __ATOMIC_RELEASE);
}
// Like load_acquire: lets the other threads run first.
inline uint64_t load_relaxed(const uint64_t* p, sim::Location where = sim::Location::current()) {
  sim::check_global(p, sizeof *p, "load_relaxed");
  const auto* spins_on = reinterpret_cast<const uint32_t*>(p) + 1;
  sim::machine().spin(spins_on, *spins_on, {"load_relaxed", where});
  return *p;
}
inline void load_relaxed(const uint64_t* p, uint64_t& first, uint64_t& second,
                         sim::Location where = sim::Location::current()) {
  sim::check_global(p, 2 * sizeof *p, "load_relaxed");
  second = load_relaxed(p + 1, where);
  first = *p;
}
inline void store_relaxed(uint64_t* p, uint64_t v) {
  sim::check_global(p, sizeof *p, "store_relaxed");
  *p = v;
}
inline void store_relaxed(uint64_t* p, uint64_t first, uint64_t second) {
  store_relaxed(p, first);
  store_relaxed(p + 1, second);
}
inline uint32_t load_relaxed_system(const uint32_t* p) {
  sim::check_global(p, sizeof *p, "load_relaxed_system");
  return __atomic_load_n(p, __ATOMIC_RELAXED);
}
inline void store_release_system(uint32_t* p, uint32_t v) { store_release(p, v); }

// Each call advances the clock by 0.2 ms, so that time-outs do not depend on the speed of the host.
inline uint64_t time_ns() { return sim::machine().time_ns(); }

inline void device_fence() {}
inline void dependents_may_launch() {}
inline void wait_for_previous() {}

template <class T>
T warp_sum(T v, sim::Location where = sim::Location::current()) {
  return sim::reduce(v, {"warp_sum", where}, [](T a, T b) { return T(a + b); });
}
template <class T>
T warp_max(T v, sim::Location where = sim::Location::current()) {
  return sim::reduce(v, {"warp_max", where}, [](T a, T b) { return max(a, b); });
}
template <class T>
T warp_min(T v, sim::Location where = sim::Location::current()) {
  return sim::reduce(v, {"warp_min", where}, [](T a, T b) { return min(a, b); });
}

template <class Scratch>
float block_sum(float v, const Scratch& scratch, sim::Location where = sim::Location::current()) {
  v = warp_sum(v, where);
  if (lane() == 0) scratch[warp()] = v;
  block_barrier(where);
  v = warp_sum(lane() < n_warps() ? float(scratch[lane()]) : 0.0f, where);
  block_barrier(where);
  return v;
}

template <class Scratch>
float block_max(float v, const Scratch& scratch, sim::Location where = sim::Location::current()) {
  v = warp_max(v, where);
  if (lane() == 0) scratch[warp()] = v;
  block_barrier(where);
  v = warp_max(float(scratch[lane() < n_warps() ? lane() : 0]), where);
  block_barrier(where);
  return v;
}

}  // namespace lb::gpu
