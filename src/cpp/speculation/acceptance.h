// Acceptance: estimates how often a drafter's nodes are accepted, given that their parent is. A drafter's probabilities
// may be off by any factor, and the factor may grow with depth. Recent steps' acceptance corrects both.
#pragma once

#include <array>
#include <span>

#include "ops/draft.h"

namespace lb {

class Acceptance {
 public:
  // drafted: the drafter's probability of a node, given its parent. depth >= 1. Result in [0, 1].
  double estimate(double drafted, int depth) const;
  // The tree with scores from estimate(), in the draft's order or best rows first.
  Draft rescored(const Draft& draft) const;
  Draft corrected(const Draft& draft) const;

  struct Node {
    double drafted;
    int depth;
    bool is_accepted;
  };
  // Learns from one verify. nodes: all nodes whose parents were accepted.
  void learn(std::span<const Node> nodes);

  // Calls f(double&) for each number that was learned.
  template <class F>
  void for_each_number(F&& f) {
    const auto visit = [&](Tally& tally) { f(tally.accepted), f(tally.estimated); };
    visit(all_);
    for (Tally& tally : bins_) visit(tally);
    for (Tally& tally : depths_) visit(tally);
  }

 private:
  // Decayed sums over past nodes: each verify multiplies the older sums by kKeep. The ratio is 1 without evidence.
  struct Tally {
    double accepted = 0, estimated = 0;
    double ratio(double prior, double weight) const { return (accepted + prior * weight) / (estimated + weight); }
  };
  static constexpr int kBins = 10, kDepths = 9;
  static int bin_of(double drafted);
  static int depth_of(int depth);
  double by_probability(double drafted) const;

  Tally all_;                          // accepted per drafted probability
  std::array<Tally, kBins> bins_;      // accepted per drafted probability, per range of drafted probabilities
  std::array<Tally, kDepths> depths_;  // accepted per bin-corrected probability, per range of depths
};

// Probability of a row given its parent, from the scores. row >= 1.
double conditional(const Draft& draft, int row);

// Expected number of accepted tokens of the first n rows, for n = 1 .. draft.rows, assuming correct scores. Siblings
// are mutually exclusive, so their probabilities sum to at most 1.
std::array<double, kMaxTree + 1> expected_tokens(const Draft& draft);

}  // namespace lb
