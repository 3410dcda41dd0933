// A fault that a test injects into the link between simulated devices. Plain C, as sim_abi.h.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "device/sim_abi.h"

extern "C" {

// Every `every`-th word that the kernels of a device send to other devices arrives with the bits `flipped` inverted.
struct lb_sim_link_fault {
  uint64_t flipped;
  uint32_t every;
  uint32_t n_wrong;  // wrong words to come
  uint32_t n_sent;   // words since the last wrong one
};

// lb_sim_run() with a fault, which it updates.
typedef int lb_sim_run_with_fault_function(const lb_sim_launch* launch, lb_sim_link_fault* fault, char* error,
                                           size_t error_size);

__attribute__((visibility("default"))) lb_sim_run_with_fault_function lb_sim_run_with_fault;
}
