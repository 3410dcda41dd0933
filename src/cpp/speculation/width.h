// StepWidth: decides what each decode step verifies: nothing (one plain token), the suffix draft, the draft model's
// tree or the union of both, and how many rows of it. It maximises expected tokens per millisecond, from measured costs
// and from how often drafted tokens were accepted so far. A pure function of its inputs and their order. One step:
//   choose()  before the draft model runs, as its time is part of the choice
//   tree()    the rows to verify; after kModel with the model's tree
//   record()  how many tokens the step gave
// Keep one StepWidth for the life of a session: what it has learned holds for the next request too.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "ops/draft.h"

namespace lb {

struct StepCosts {
  struct Append {
    int rows;   // 2..kMaxTree, ascending: a tile of the products with few rows
    double ms;  // of the verify of a tree with up to so many rows: forward pass, head, sampling, commit
  };
  std::vector<Append> append;
  double plain_ms = 0;  // one token decoded without speculation
  double draft_ms = 0;  // one tree of the draft model; 0 without one
};

enum class StepKind { kPlain, kSuffix, kModel };

class StepWidth {
 public:
  // draft_budget: nodes below the root that every tree may have; 0: chosen for each step. Throws kInvalid.
  StepWidth(const StepCosts& costs, bool has_model, int draft_budget = 0);

  // New costs, for instance of a longer context. What was learned stays.
  void set_costs(const StepCosts& costs);

  // suffix: rows == 0: none. max_rows: room in the sequence's state.
  StepKind choose(const Draft& suffix, int max_rows);
  // The tree to verify: best rows first, scores corrected by what was accepted. model: null after kSuffix. Its rows may
  // be 0 after kModel: the drafted tree is not worth a verify, decode one plain token. Valid until the next choose().
  const Draft& tree(const Draft& suffix, const Draft* model);
  // path: the tree's rows that were accepted, root first; empty after a plain token. Call once per step.
  void record(std::span<const int32_t> path);
};

}  // namespace lb
