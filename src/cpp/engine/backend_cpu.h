// The CPU backend.
#pragma once

#include "engine/backend.h"

namespace lb {

std::unique_ptr<Backend> cpu_backend();

// Sizes for plans. free_bytes: memory that a plan may use; 0: this machine's free memory.
std::unique_ptr<DeviceSizes> cpu_sizes(size_t free_bytes);

}  // namespace lb
