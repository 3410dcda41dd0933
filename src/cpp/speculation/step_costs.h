// What a decode step costs on a device, with and without drafts.
#pragma once

#include <vector>

namespace lb {

struct StepCosts {
  struct Append {
    int rows;   // 2..kMaxTree, ascending: tiles of the products with few rows
    double ms;  // to verify a tree of up to that many rows: forward pass, head, sampling
  };
  std::vector<Append> append;
  double plain_ms = 0;    // one token decoded without speculation
  double draft_ms = 0;    // one tree of the draft model; 0 without one
  int draft_depth = 0;    // of that tree, where a shallower one takes less; 0: any depth takes as long
  double first_ms = 0;    // then: a tree of depth 1
  double context_ms = 0;  // the draft model's K and V of the plain tokens before a draft
  bool is_fixed = false;  // real times of steps do not replace them: then widths are the same in every run
};

}  // namespace lb
