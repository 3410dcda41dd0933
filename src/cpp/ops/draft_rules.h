// Grows a draft tree, best first, from the likeliest tokens of each depth. Compiled for host and device, so that both
// build the same tree. The draft model predicts each depth independently, so a path's probability is estimated as the
// product of its tokens' probabilities (Ringel and Romano, DDTree, 2026).
#pragma once

#include "ops/draft.h"
#include "ops/sample_rules.h"
#include "ops/top_tokens.h"

namespace lb::drafting {

// Makes a tree of the root alone.
LB_FN void start(Draft& draft, int32_t root) {
  draft.rows = 1;
  draft.tokens[0] = root, draft.parents[0] = -1, draft.depths[0] = 0, draft.scores[0] = 0, draft.ancestors[0] = 1;
}

// Adds a node and returns it. draft.rows < kMaxTree.
LB_FN int32_t add(Draft& draft, int32_t token, int32_t parent, float score) {
  const int32_t i = draft.rows++;
  draft.tokens[i] = token, draft.parents[i] = parent, draft.scores[i] = score;
  draft.depths[i] = draft.depths[parent] + 1;
  draft.ancestors[i] = draft.ancestors[parent] | uint64_t(1) << i;
  return i;
}

// Priority of a candidate node: larger is added first. Larger scores first, then lower parents, then lower ranks; NaN
// last. Never 0.
LB_FN uint64_t order_of(float score, int32_t parent, int32_t rank) {
  return uint64_t(sampling::ordered(score)) << 32 | ~uint32_t(parent * kMaxTopTokens + rank);
}
LB_FN int32_t parent_in(uint64_t order) { return int32_t(~uint32_t(order)) / kMaxTopTokens; }
LB_FN int32_t rank_in(uint64_t order) { return int32_t(~uint32_t(order)) % kMaxTopTokens; }

// The likeliest tokens of every depth below the root: ids and logprobs [depth, k], descending in each depth.
struct Likeliest {
  const int32_t* ids;
  const float* logprobs;
  int depth, k;
};

LB_FN int32_t add(Draft& draft, const Likeliest& from, int32_t parent, int rank) {
  const int at = draft.depths[parent] * from.k + rank;
  return add(draft, from.ids[at], parent, draft.scores[parent] + from.logprobs[at]);
}

// Priority of the token of rank `rank` below `parent`.
LB_FN uint64_t order_of(const Draft& draft, const Likeliest& from, int32_t parent, int rank) {
  return order_of(draft.scores[parent] + from.logprobs[draft.depths[parent] * from.k + rank], parent, rank);
}

// Adds up to `budget` nodes below the root, which the draft already has. budget < kMaxTree.
LB_FN void grow_tree(const Likeliest& from, int budget, Draft& draft) {
  // Each node closes one candidate and adds at most a sibling and a child.
  uint64_t open[2 * kMaxTree];
  int n_open = 0;
  open[n_open++] = order_of(draft, from, 0, 0);
  while (draft.rows <= budget && n_open > 0) {
    int best = 0;
    for (int i = 1; i < n_open; ++i)
      if (open[i] > open[best]) best = i;
    const int32_t parent = parent_in(open[best]), rank = rank_in(open[best]);
    open[best] = open[--n_open];
    const int32_t node = add(draft, from, parent, rank);
    if (rank + 1 < from.k) open[n_open++] = order_of(draft, from, parent, rank + 1);
    if (draft.depths[node] < from.depth) open[n_open++] = order_of(draft, from, node, 0);
  }
}

}  // namespace lb::drafting
