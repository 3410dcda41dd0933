// The shared library of a sim pack, loaded from memory.
#pragma once

#include <span>
#include <string>

#include "device/sim_abi.h"

namespace lb::gpu {

struct SimImage {
  std::span<const lb_sim_kernel> kernels;
  lb_sim_run_function* run;
};

// The image in these bytes, which are a whole ELF file; null with the reason when it is no sim pack. The same bytes
// give the same image, and images stay for the life of the process: they keep data of threads, so unloading is no
// certain thing, and the space for such data is small.
const SimImage* load_sim_image(std::string bytes, std::string& why);

}  // namespace lb::gpu
