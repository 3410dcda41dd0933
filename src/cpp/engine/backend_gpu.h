// The backend of one GPU.
#pragma once

#include "engine/backend.h"
#include "pack/pack.h"

namespace lb {

// name: the Device's, such as "cuda:0". lender: an engine on the same device that lends its weight memory to a scorer
// and stays idle meanwhile; null: the device's free memory.
std::unique_ptr<Backend> gpu_backend(std::shared_ptr<gpu::Pack> pack, std::string name,
                                     std::shared_ptr<const Engine> lender = nullptr);

enum class MemorySource { kFree, kLent };

// Sizes for plans; the GPU need not be installed. free_bytes: memory that a plan may use, including the driver's share
// if it counts the device's free memory.
std::unique_ptr<DeviceSizes> gpu_sizes(gpu::Target target, std::string name, size_t free_bytes,
                                       MemorySource source = MemorySource::kFree);

}  // namespace lb
