// The interface of a sim pack's kernels.so: a list of its kernels, and a call that runs one launch to completion.
// Device memory is host memory. The layout is plain C, because different compilers may build the engine and the pack.
#pragma once

#include <stddef.h>
#include <stdint.h>

extern "C" {

struct lb_sim_kernel {
  const char* name;
  int max_threads, min_blocks;
  size_t params_bytes;
  size_t static_shared_bytes;  // the maximum over all runs so far; 0 before the kernel's first run
};

struct lb_sim_launch {
  const char* kernel;
  uint32_t grid[3], block[3];  // block[1] and block[2] are 1
  size_t dynamic_shared_bytes;
  int cooperative;  // all blocks co-resident; grid_barrier allowed
  const void* params;
  size_t params_bytes;
  // Zero selects the defaults: threads and blocks in ascending order, stacks of 128 KiB (512 KiB under address
  // sanitizer).
  uint64_t order_seed;  // another value permutes the order in which threads run
  size_t stack_bytes;
  uint32_t cluster;  // consecutive blocks that are co-resident; 0 and 1: no cluster
};

// The pack's kernels, sorted by name.
typedef const lb_sim_kernel* lb_sim_kernels_function(int* count);

// Returns 0 on success. Otherwise `error` names the kernel, block and thread, the expected and the actual behaviour.
// Several OS threads may call it concurrently.
typedef int lb_sim_run_function(const lb_sim_launch* launch, char* error, size_t error_size);

__attribute__((visibility("default"))) lb_sim_kernels_function lb_sim_kernels;
__attribute__((visibility("default"))) lb_sim_run_function lb_sim_run;
}
