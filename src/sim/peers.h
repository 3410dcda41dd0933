// Words that devices exchange. Each simulated device runs in an OS thread of its own.
#pragma once

#include <chrono>
#include <thread>

#include "device/sim_fault.h"

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

inline thread_local lb_sim_link_fault* link_fault = nullptr;  // of the running launch; null: none

// A word as it arrives at another device.
inline uint64_t arriving(uint64_t word) {
  lb_sim_link_fault* const fault = link_fault;
  if (fault == nullptr || fault->n_wrong == 0 || ++fault->n_sent < fault->every) return word;
  fault->n_sent = 0;
  --fault->n_wrong;
  return word ^ fault->flipped;
}

}  // namespace sim

inline void load_relaxed_system(const uint64_t* p, uint64_t& first, uint64_t& second,
                                sim::Location where = sim::Location::current()) {
  sim::check_global(p, 2 * sizeof *p, "load_relaxed_system");
  sim::wait_for_device(p, where);
  first = __atomic_load_n(p, __ATOMIC_RELAXED);
  second = __atomic_load_n(p + 1, __ATOMIC_RELAXED);
}
inline uint64_t load_relaxed_system(const uint64_t* p, sim::Location where = sim::Location::current()) {
  sim::check_global(p, sizeof *p, "load_relaxed_system");
  sim::wait_for_device(p, where);
  return __atomic_load_n(p, __ATOMIC_RELAXED);
}
inline uint32_t load_acquire_system(const uint32_t* p, sim::Location where = sim::Location::current()) {
  sim::check_global(p, sizeof *p, "load_acquire_system");
  sim::wait_for_device(p, where);
  return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}
inline void store_relaxed_system(uint64_t* p, uint64_t first, uint64_t second) {
  sim::check_global(p, 2 * sizeof *p, "store_relaxed_system");
  __atomic_store_n(p, sim::arriving(first), __ATOMIC_RELAXED);
  __atomic_store_n(p + 1, sim::arriving(second), __ATOMIC_RELAXED);
}
inline void store_relaxed_system(uint64_t* p, uint64_t v) {
  sim::check_global(p, sizeof *p, "store_relaxed_system");
  __atomic_store_n(p, sim::arriving(v), __ATOMIC_RELAXED);
}
inline void system_fence() { __atomic_thread_fence(__ATOMIC_ACQ_REL); }

// Real time: for waits on other devices.
inline uint64_t wall_ns() {
  return uint64_t(std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count());
}

}  // namespace lb::gpu
