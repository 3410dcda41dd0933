// The backend of one GPU.
#pragma once

#include "engine/backend.h"
#include "pack/pack.h"

namespace lb {

// name: "cuda:0", for plans and messages.
std::unique_ptr<Backend> gpu_backend(std::shared_ptr<gpu::Pack> pack, std::string name);

}  // namespace lb
