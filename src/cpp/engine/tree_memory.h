// The memory of a session that drafts, in the stream: the tree being verified with its logits, and of the draft
// model the candidates of the next tree. The memory is the session's own, so a draft may run before other sessions'
// work and its verify after it.
#pragma once

#include "engine/engine.h"
#include "ops/draft.h"

namespace lb {

struct TreeMemory {
  float* logits = nullptr;       // [tree rows, vocab]; null: the engine does not draft
  Draft* tree = nullptr;         // [1]
  int32_t* positions = nullptr;  // [3, rows] of the append of a tree, at most kMaxTree rows
  // The draft model's; null without one.
  int32_t* ids = nullptr;            // [max_depth, n_candidates]
  float* logprobs = nullptr;         // [max_depth, n_candidates]
  float* replay_logprobs = nullptr;  // the same, in place of the draft model's while a benchmark replays
  int32_t* n_before = nullptr;       // [1] committed tokens before the path that the device accepted last
  DraftRoot root{};

  TreeMemory() = default;
  TreeMemory(Carver& carver, const Model& target, const DraftModel* draft, const EngineOptions& options);
  static size_t planned_bytes(const Model& target, const DraftModel* draft, const EngineOptions& options);
};

}  // namespace lb
