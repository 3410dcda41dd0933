// The backend of one GPU.
#pragma once

#include "engine/backend.h"
#include "pack/pack.h"

namespace lb {

// name: "cuda:0", for plans and messages.
std::unique_ptr<Backend> gpu_backend(std::shared_ptr<gpu::Pack> pack, std::string name);

// Sizes for plans, of a GPU that need not be here. free_bytes: memory that a plan may use, with the driver's share.
std::unique_ptr<DeviceSizes> gpu_sizes(gpu::Target target, std::string name, size_t free_bytes);

}  // namespace lb
