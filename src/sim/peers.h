// Words that devices exchange. Each simulated device runs in an OS thread of its own.
#pragma once

#include <chrono>
#include <thread>

namespace lb::gpu {
namespace sim {

// Lets the other threads of this device run first, and now and then other devices. Never counts as a deadlock: another
// device may change the value.
inline void wait_for_device(const void* p, Location where) {
  static thread_local const Thread* last = nullptr;
  static thread_local uint32_t n_waits = 0;
  if (++n_waits % 256 == 0 || current == last) {
    last = current;
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  machine().spin(static_cast<const uint32_t*>(p), n_waits, {"load of another device's word", where});
}

}  // namespace sim

inline void load_relaxed_system(const uint64_t* p, uint64_t& first, uint64_t& second,
                                sim::Location where = sim::Location::current()) {
  sim::check_global(p, 2 * sizeof *p, "load_relaxed_system");
  sim::wait_for_device(p, where);
  first = __atomic_load_n(p, __ATOMIC_RELAXED);
  second = __atomic_load_n(p + 1, __ATOMIC_RELAXED);
}
inline uint32_t load_acquire_system(const uint32_t* p, sim::Location where = sim::Location::current()) {
  sim::check_global(p, sizeof *p, "load_acquire_system");
  sim::wait_for_device(p, where);
  return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}
inline void store_relaxed_system(uint64_t* p, uint64_t first, uint64_t second) {
  sim::check_global(p, 2 * sizeof *p, "store_relaxed_system");
  __atomic_store_n(p, first, __ATOMIC_RELAXED);
  __atomic_store_n(p + 1, second, __ATOMIC_RELAXED);
}

// Real time: for waits on other devices.
inline uint64_t wall_ns() {
  return uint64_t(std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count());
}

}  // namespace lb::gpu
