#include "speculation/acceptance.h"

#include <algorithm>
#include <cmath>

#include "speculation/merge.h"

namespace lb {
namespace {

constexpr double kKeep = 1 - 1.0 / 96;                              // an effective window of about 96 verifies
constexpr double kMinConditional = 1e-6;                            // keeps scores finite
constexpr double kAllWeight = 2, kBinWeight = 2, kDepthWeight = 4;  // weights of the prior, in estimated tokens

// Upper bounds of the bins. Fine near 1, where a long path's probability depends on small differences.
constexpr std::array kBinBounds{0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.95, 0.98};
constexpr std::array kDepthBounds{1, 2, 3, 4, 6, 9, 14, 24};

}  // namespace

int Acceptance::bin_of(double drafted) {
  static_assert(kBinBounds.size() + 1 == kBins);
  return static_cast<int>(std::lower_bound(kBinBounds.begin(), kBinBounds.end(), drafted) - kBinBounds.begin());
}

int Acceptance::depth_of(int depth) {
  static_assert(kDepthBounds.size() + 1 == kDepths);
  return static_cast<int>(std::lower_bound(kDepthBounds.begin(), kDepthBounds.end(), depth) - kDepthBounds.begin());
}

double Acceptance::by_probability(double drafted) const {
  return std::min(1.0, drafted * bins_[bin_of(drafted)].ratio(all_.ratio(1, kAllWeight), kBinWeight));
}

double Acceptance::estimate(double drafted, int depth) const {
  return std::min(1.0, by_probability(drafted) * depths_[depth_of(depth)].ratio(1, kDepthWeight));
}

Draft Acceptance::rescored(const Draft& draft) const {
  Draft result = draft;
  for (int i = 1; i < draft.rows; ++i) {
    const double estimated = std::max(kMinConditional, estimate(conditional(draft, i), draft.depths[i]));
    result.scores[i] = result.scores[draft.parents[i]] + static_cast<float>(std::log(estimated));
  }
  return result;
}

Draft Acceptance::corrected(const Draft& draft) const { return merge(rescored(draft), Draft{}); }

void Acceptance::learn(std::span<const Node> nodes) {
  const auto fade = [](Tally& tally) { tally.accepted *= kKeep, tally.estimated *= kKeep; };
  fade(all_);
  std::for_each(bins_.begin(), bins_.end(), fade);
  std::for_each(depths_.begin(), depths_.end(), fade);
  const auto add = [](Tally& tally, const Node& node, double estimated) {
    tally.accepted += node.is_accepted;
    tally.estimated += estimated;
  };
  for (const Node& node : nodes) {
    add(all_, node, node.drafted);
    add(bins_[bin_of(node.drafted)], node, node.drafted);
  }
  for (const Node& node : nodes) add(depths_[depth_of(node.depth)], node, by_probability(node.drafted));
}

double conditional(const Draft& draft, int row) {
  return std::min(1.0, std::exp(double(draft.scores[row]) - draft.scores[draft.parents[row]]));
}

std::array<double, kMaxTree + 1> expected_tokens(const Draft& draft) {
  std::array<double, kMaxTree + 1> sums{};
  std::array<double, kMaxTree> probability, left;  // left: probability not yet taken by a node's children
  probability[0] = left[0] = 1;
  for (int i = 1; i < draft.rows; ++i) {
    const int parent = draft.parents[i];
    const double share = std::min(conditional(draft, i), left[parent]);
    left[parent] -= share;
    probability[i] = probability[parent] * share;
    left[i] = 1;
    sums[i + 1] = sums[i] + probability[i];
  }
  return sums;
}

}  // namespace lb
