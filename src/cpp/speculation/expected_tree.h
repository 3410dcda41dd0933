// ExpectedTree: predicts how many tokens of the first n rows of a draft model's next tree will be accepted, before that
// tree is known. Combines a prior with a running mean over recent trees.
#pragma once

#include <array>

#include "ops/draft.h"

namespace lb {

class ExpectedTree {
 public:
  ExpectedTree();

  double accepted(int rows) const { return accepted_[rows]; }
  // Learns from a tree with corrected scores. longest_depth: as in StepTimes.
  void learn(const Draft& tree, int longest_depth);

  // Calls f(double&) for each number that was learned.
  template <class F>
  void for_each_number(F&& f) {
    for (double& accepted : accepted_) f(accepted);
    f(n_trees_);
  }
  // Whether each row yields at most one more token than the rows before it.
  bool is_possible() const;

 private:
  void expect_deeper(int known);

  std::array<double, kMaxTree + 1> accepted_{};  // [n] expected accepted tokens of the first n rows
  double n_trees_ = 0;
};

}  // namespace lb
