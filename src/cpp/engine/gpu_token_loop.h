// The token loop of a GPU. A step is a launch of the megakernel or a replayed graph.
#pragma once

#include <memory>

#include "engine/token_loop.h"
#include "models/model.h"
#include "ops/sample.h"
#include "sampling/sampler.h"

namespace lb {

class Engine;
struct EngineOptions;
struct Models;
struct StepRing;
namespace gpu {
struct Target;
}

// Converts a request's sampling parameters to the form that the device reads.
SampleOptions sample_options_of(const SamplingParams& params);

// rings: [shards] receive the tapped rows of its steps; empty without a draft model.
std::unique_ptr<TokenLoop> gpu_token_loop(const Engine& engine, SequenceState& state, std::span<const StepRing> rings);
size_t gpu_token_loop_bytes(const Model& model, const EngineOptions& options, int context);
// Bytes of the megakernel's tables; 0: steps are graphs. Throws kUnsupported if the options require the megakernel and
// the target has no megakernel for the model.
size_t gpu_step_bytes(const Models& models, const EngineOptions& options, const gpu::Target& target);

}  // namespace lb
