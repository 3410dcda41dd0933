// Sizes everything an engine and one session will use, and settles the context length.
#pragma once

#include "engine/engine.h"

namespace lb {

StreamOptions stream_options(const Model& model, const EngineOptions& options);
// Resolves options.context. Throws kMemory with the numbers, and the largest context that would fit.
MemoryPlan make_plan(const Model& model, size_t mapped_bytes, size_t available_bytes, EngineOptions& options);

}  // namespace lb
