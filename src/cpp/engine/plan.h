// Counts all memory of an engine and one session, and settles the context length.
#pragma once

#include "engine/backend.h"
#include "engine/memory_plan.h"
#include "engine/options.h"

namespace lb {

// Resolves options.context and options.kv_tokens, and caps options.prefill_chunk. Throws kMemory with the numbers and
// the largest context that would fit.
MemoryPlan make_plan(const Models& models, const DeviceSizes& sizes, size_t file_bytes, EngineOptions& options);

// The state options of a session, with the context settled.
StateOptions state_options(const ModelOptions& options);

// What an engine's ops need of a stream.
StreamNeeds stream_needs(const Models& models, const EngineOptions& options);

// Bytes of a session's StepRows; 0 where no draft model reads them, or no device decodes.
size_t step_row_bytes(const DraftModel* draft, const DeviceSizes& sizes, const Model& model,
                      const EngineOptions& options);

}  // namespace lb
