// TreeMemory: a drafting session's buffers in the stream's memory: the tree being verified with its logits, and the
// draft model's candidates for the next tree. Each session has separate buffers, so other sessions' work may run
// between its draft and its verify.
#pragma once

#include "engine/engine.h"
#include "ops/draft.h"

namespace lb {

struct TreeMemory {
  float* logits = nullptr;       // [tree rows, vocab]; null: the engine does not draft, or the shard has no target
  Draft* tree = nullptr;         // [1]
  int32_t* positions = nullptr;  // [3, rows] of the append of a tree, at most kMaxTree rows
  // The draft model's; null without one.
  int32_t* ids = nullptr;            // [max_depth, n_candidates]
  float* logprobs = nullptr;         // [max_depth, n_candidates]
  float* replay_logprobs = nullptr;  // [max_depth, n_candidates]; replaces logprobs while a benchmark replays
  int32_t* n_before = nullptr;       // [1] committed tokens before the path that the device accepted last
  DraftRoot root{};

  TreeMemory() = default;
  // target, draft: null on a shard without it.
  TreeMemory(Carver& carver, const Model* target, const DraftModel* draft, const EngineOptions& options);
  static size_t planned_bytes(const Model* target, const DraftModel* draft, const EngineOptions& options);
};

}  // namespace lb
