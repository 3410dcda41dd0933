// Registers the kernels of a sim pack; pack.cpp exports them (device/sim_abi.h).
#pragma once

#include <cstddef>

namespace lb::gpu::sim {

using AnyKernel = void (*)();

struct Kernel {
  const char* name;
  int max_threads, min_blocks;
  size_t params_bytes;
  AnyKernel function;
  void (*call)(AnyKernel, const void* params);
};

void add_kernel(const Kernel&);

template <class Params>
struct Registration {
  Registration(const char* name, int max_threads, int min_blocks, void (*function)(const Params&)) {
    static_assert(__is_trivially_copyable(Params) && alignof(Params) <= alignof(std::max_align_t));
    add_kernel({name, max_threads, min_blocks, sizeof(Params), reinterpret_cast<AnyKernel>(function),
                [](AnyKernel f, const void* params) {
                  reinterpret_cast<void (*)(const Params&)>(f)(*static_cast<const Params*>(params));
                }});
  }
};

}  // namespace lb::gpu::sim
