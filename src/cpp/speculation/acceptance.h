// Acceptance: how often the nodes that a drafter proposes are accepted, once their parent is. A drafter's probabilities
// may be wrong by any factor, which may grow with the depth: both are corrected by what was accepted in recent steps.
#pragma once

#include <array>
#include <span>

#include "ops/draft.h"

namespace lb {

class Acceptance {
 public:
  // drafted: the drafter's probability of a node, given its parent. depth >= 1. In [0, 1].
  double estimate(double drafted, int depth) const;
  // The tree with scores from estimate(), in the draft's order or best rows first.
  Draft rescored(const Draft& draft) const;
  Draft corrected(const Draft& draft) const;

  struct Node {
    double drafted;
    int depth;
    bool is_accepted;
  };
  // One verify: the nodes whose parents were accepted.
  void learn(std::span<const Node> nodes);

 private:
  // Sums over past nodes; each verify multiplies the older ones by kKeep. The ratio is 1 without evidence.
  struct Tally {
    double accepted = 0, estimated = 0;
    double ratio(double prior, double weight) const { return (accepted + prior * weight) / (estimated + weight); }
  };
  static constexpr int kBins = 10, kDepths = 9;
  static int bin_of(double drafted);
  static int depth_of(int depth);
  double by_probability(double drafted) const;

  Tally all_;                          // accepted per drafted probability
  std::array<Tally, kBins> bins_;      // the same for a range of drafted probabilities
  std::array<Tally, kDepths> depths_;  // accepted per probability corrected by the bins, for a range of depths
};

// Probability of a row given its parent, from the scores. row >= 1.
double conditional(const Draft& draft, int row);

// Expected number of accepted tokens of the first n rows, for n = 1 .. draft.rows, from scores that are right. The
// children of a node exclude each other, so that their probabilities add up to 1 at most.
std::array<double, kMaxTree + 1> expected_tokens(const Draft& draft);

}  // namespace lb
