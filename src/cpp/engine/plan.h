// Sizes everything an engine and one session will use, and settles the context length.
#pragma once

#include "engine/engine.h"

namespace lb {

// Resolves options.context. Throws kMemory with the numbers, and the largest context that would fit.
MemoryPlan make_plan(Model& model, const Backend& place, size_t file_bytes, EngineOptions& options);

}  // namespace lb
