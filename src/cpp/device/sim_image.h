// The shared library of a sim pack, loaded from memory.
#pragma once

#include <span>
#include <string>

#include "device/sim_fault.h"

namespace lb::gpu {

struct SimImage {
  std::span<const lb_sim_kernel> kernels;
  lb_sim_run_function* run;
  lb_sim_run_with_fault_function* run_with_fault;  // null: the library has none
};

// Loads the ELF file in `bytes`; returns null and sets `why` when it is no sim pack. Equal bytes give the same image.
// Images stay loaded for the life of the process: a library with thread-local data may fail to unload, and the loader's
// space for such data is small.
const SimImage* load_sim_image(std::string bytes, std::string& why);

}  // namespace lb::gpu
