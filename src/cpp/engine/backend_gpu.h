// The backend of one GPU.
#pragma once

#include "engine/backend.h"
#include "pack/pack.h"

namespace lb {

// name: "cuda:0", of the Device. lender: an engine on the same device that lends the memory of its weights to a scorer,
// and computes nothing meanwhile; null: the device's free memory.
std::unique_ptr<Backend> gpu_backend(std::shared_ptr<gpu::Pack> pack, std::string name,
                                     std::shared_ptr<const Engine> lender = nullptr);

enum class MemorySource { kFree, kLent };

// Sizes for plans, of a GPU that need not be here. free_bytes: memory that a plan may use, with the driver's share
// where it is free memory.
std::unique_ptr<DeviceSizes> gpu_sizes(gpu::Target target, std::string name, size_t free_bytes,
                                       MemorySource source = MemorySource::kFree);

}  // namespace lb
