// A GPU as the place of an engine.
#pragma once

#include "engine/backend.h"
#include "pack/pack.h"

namespace lb {

// `name`: "cuda:0", in plans and messages.
std::unique_ptr<Backend> gpu_backend(std::shared_ptr<gpu::Pack> pack, std::string name);

}  // namespace lb
