// What a sim pack's kernels.so exports: its kernels, and a call that runs one of them to its end. Device memory is host
// memory. Plain C layout: the two sides may come from two compilers.
#pragma once

#include <stddef.h>
#include <stdint.h>

extern "C" {

struct lb_sim_kernel {
  const char* name;
  int max_threads, min_blocks;
  size_t params_bytes;
  size_t static_shared_bytes;  // the most any run so far has declared: known only once the kernel has run
};

struct lb_sim_launch {
  const char* kernel;
  uint32_t grid[3], block[3];  // block[1] and block[2] are 1
  size_t dynamic_shared_bytes;
  int cooperative;  // all blocks alive at once, grid_barrier allowed
  const void* params;
  size_t params_bytes;
  // Zero for the usual: threads and blocks in ascending order, stacks of 128 KiB (512 KiB under address sanitizer).
  uint64_t order_seed;  // anything else permutes the order in which threads run
  size_t stack_bytes;
  uint32_t cluster;  // consecutive blocks that are alive at once; 0 and 1: none
};

// The pack's kernels in order of name.
typedef const lb_sim_kernel* lb_sim_kernels_function(int* count);

// 0: ran. Otherwise `error` has the reason: the kernel, block and thread, what was expected and what was found.
// Several threads may run kernels at once.
typedef int lb_sim_run_function(const lb_sim_launch* launch, char* error, size_t error_size);

__attribute__((visibility("default"))) lb_sim_kernels_function lb_sim_kernels;
__attribute__((visibility("default"))) lb_sim_run_function lb_sim_run;
}
