// Reports stacks and shared memory to address sanitizer; no-ops in builds without it.
#pragma once

#include <cstddef>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define LB_ADDRESS_SANITIZER
#endif
#elif defined(__SANITIZE_ADDRESS__)
#define LB_ADDRESS_SANITIZER
#endif

#ifdef LB_ADDRESS_SANITIZER
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace lb::gpu::sim {

#ifdef LB_ADDRESS_SANITIZER
inline constexpr bool kAddressSanitizer = true;
inline void poison(const void* p, size_t bytes) { __asan_poison_memory_region(p, bytes); }
inline void unpoison(const void* p, size_t bytes) { __asan_unpoison_memory_region(p, bytes); }
// fake_stack is null if the old stack will not be resumed.
inline void start_switch(void** fake_stack, const void* low, size_t bytes) {
  __sanitizer_start_switch_fiber(fake_stack, low, bytes);
}
inline void finish_switch(void* fake_stack, const void** left_low, size_t* left_bytes) {
  __sanitizer_finish_switch_fiber(fake_stack, left_low, left_bytes);
}
#else
inline constexpr bool kAddressSanitizer = false;
inline void poison(const void*, size_t) {}
inline void unpoison(const void*, size_t) {}
inline void start_switch(void**, const void*, size_t) {}
inline void finish_switch(void*, const void**, size_t*) {}
#endif

}  // namespace lb::gpu::sim
