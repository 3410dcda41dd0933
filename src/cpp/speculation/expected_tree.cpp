#include "speculation/expected_tree.h"

#include <algorithm>

#include "speculation/acceptance.h"

namespace lb {
namespace {

// Prior before a draft model has drafted: acceptance probability of each token of a path, given its parent. Trained
// drafters of small models reach 0.6 to 0.8; recorded drafters of a 27B reach 0.75 (MTP) and 0.85 (DFlash).
constexpr double kPriorChance = 0.6;
constexpr double kNewestMean = 1.0 / 8;  // least weight of the newest tree; the prior and the first tree weigh the same
constexpr double kRounding = 1e-9;
constexpr double kDeeperMean = 1.0 / 64;  // weight of the extrapolation below the newest tree's depth

}  // namespace

ExpectedTree::ExpectedTree() {
  double chance = 1;
  for (int n = 2; n <= kMaxTree; ++n) accepted_[n] = accepted_[n - 1] + (chance *= kPriorChance);
}

bool ExpectedTree::is_possible() const {
  bool is_possible = accepted_[0] == 0 && accepted_[1] == 0;
  for (int n = 2; n <= kMaxTree; ++n)
    is_possible &= accepted_[n] >= accepted_[n - 1] - kRounding && accepted_[n] <= accepted_[n - 1] + 1 + kRounding;
  return is_possible;
}

void ExpectedTree::learn(const Draft& tree, int longest_depth) {
  const auto accepted = expected_tokens(tree);
  const int rows = std::max(tree.rows, 1);
  // A deeper tree has the same first rows, because row n is at most n deep.
  const int deepest = *std::max_element(tree.depths, tree.depths + rows);
  const int known = deepest < longest_depth ? deepest + 1 : kMaxTree;
  for (int n = 1; n <= known; ++n) {
    const double newest = accepted[std::min(n, rows)];
    accepted_[n] += (newest - accepted_[n]) * std::max(kNewestMean, 1.0 / (n_trees_ + 2));
  }
  ++n_trees_;
  expect_deeper(known);
}

// If drafts are seldom deep, the planner would never learn that depth pays. So the rows below the known ones slowly
// approach a geometric continuation of the known gains.
void ExpectedTree::expect_deeper(int known) {
  const auto gain = [&](int n) { return n > 1 ? accepted_[n] - accepted_[n - 1] : 1; };
  double expected = accepted_[known], last = gain(known);
  const double chance = known > 1 && gain(known - 1) > 0 ? std::clamp(last / gain(known - 1), 0.0, 1.0) : 0;
  for (int n = known + 1; n <= kMaxTree; ++n) {
    expected += last *= chance;
    accepted_[n] += (expected - accepted_[n]) * kDeeperMean;
    accepted_[n] = std::max(accepted_[n], accepted_[n - 1]);
  }
}

}  // namespace lb
