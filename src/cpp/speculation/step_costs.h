// StepCosts: measured times of a decode step on a device, with and without drafts.
#pragma once

#include <vector>

namespace lb {

struct StepCosts {
  struct Append {
    int rows;   // 2..kMaxTree, ascending: row tiles of the skinny GEMMs
    double ms;  // time to verify a tree of up to that many rows: forward pass, head, sampling
  };
  std::vector<Append> append;
  double plain_ms = 0;    // one token decoded without speculation
  double draft_ms = 0;    // one tree of the draft model; 0 without one
  int draft_depth = 0;    // depth of that tree if shallower trees take less time; 0: all depths take the same time
  double first_ms = 0;    // if draft_depth > 0: time of a tree of depth 1
  double context_ms = 0;  // time to compute the draft model's K and V of plain tokens before a draft
  bool is_fixed = false;  // measured step times do not replace these costs, so that widths are reproducible
};

}  // namespace lb
