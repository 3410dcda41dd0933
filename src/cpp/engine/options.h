// User options for opening a model: to generate (EngineOptions) or to score prompts (ScorerOptions). ModelOptions has
// what both need.
#pragma once

#include <algorithm>

#include "engine/option_fields.h"
#include "ops/append.h"

namespace lb {

// The plan reserves memory for `sessions`; more may share the KV cache.
struct EngineOptions : EngineFields {
  static constexpr int kSharingSessions = 4;  // sessions that share one context, if the user gives no number
  // Sessions for whose windows the KV cache has pages: at most as many as run at once, at least one. 0: not settled
  // yet.
  int max_window_sessions = kSharingSessions, window_sessions = 0;
  bool drafts() const { return suffix || !draft_model.empty(); }
  // Most rows of a tree. Up to kInvariantRows rows have the bits of single rows.
  static constexpr int kInvariantRows = 32;
  int tree_rows() const {
    const int most = batch_invariant ? kInvariantRows : kMaxTree;
    return drafts() ? (draft_budget == 0 ? most : std::min(draft_budget + 1, most)) : 0;
  }
};

struct ScorerOptions : ScorerFields {
  int score_rows = 8;  // number of last prompt rows whose attention scores the tokens
};

}  // namespace lb
