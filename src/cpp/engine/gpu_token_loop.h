// The token loop of a GPU: one graph for a choice, one for a step and a choice.
#pragma once

#include <memory>

#include "engine/token_loop.h"
#include "models/model.h"

namespace lb {

class Engine;

std::unique_ptr<TokenLoop> gpu_token_loop(const Engine& engine, SequenceState& state);
size_t gpu_token_loop_bytes(const Model& model, int context);

}  // namespace lb
