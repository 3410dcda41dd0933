// The token loop of a GPU: a graph for a choice, and for a step with one, or the megakernel for that.
#pragma once

#include <memory>

#include "engine/token_loop.h"
#include "models/model.h"
#include "ops/sample.h"
#include "sampling/sampler.h"

namespace lb {

class Engine;
struct EngineOptions;
namespace gpu {
struct Target;
}

// The options of a request as the device reads them.
SampleOptions sample_options_of(const SamplingParams& params);

std::unique_ptr<TokenLoop> gpu_token_loop(const Engine& engine, SequenceState& state);
size_t gpu_token_loop_bytes(const Model& model, int context);
// The tables of a step as one launch; 0: steps are graphs. Throws kUnsupported where such steps were asked for and the
// target has no kernel for them.
size_t gpu_step_bytes(const Model& model, const EngineOptions& options, const gpu::Target& target);

}  // namespace lb
