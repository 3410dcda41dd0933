// How a tree grows from the likeliest tokens of each depth, compiled for host and device so that both build the same
// tree. The tokens of one depth are drafted without knowing those of the others, so a path's probability is estimated
// as the product of its tokens' (Ringel and Romano, DDTree, 2026). Best first.
#pragma once

#include "ops/draft.h"
#include "quant/half.h"

namespace lb::drafting {

// The root alone.
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

// A node that may be added: the token of rank `rank` at the depth below `parent`.
struct Candidate {
  float score;
  int32_t parent, rank;
};

// The larger score first, then the lower parent, then the lower rank.
LB_FN bool is_before(const Candidate& a, const Candidate& b) {
  if (a.score != b.score) return a.score > b.score;
  return a.parent != b.parent ? a.parent < b.parent : a.rank < b.rank;
}

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

LB_FN Candidate candidate(const Draft& draft, const Likeliest& from, int32_t parent, int rank) {
  return {draft.scores[parent] + from.logprobs[draft.depths[parent] * from.k + rank], parent, rank};
}

// Adds up to `budget` nodes below the root, which the draft already has. budget < kMaxTree.
LB_FN void grow_tree(const Likeliest& from, int budget, Draft& draft) {
  // Each node closes one candidate and adds at most a sibling and a child.
  Candidate open[2 * kMaxTree];
  int n_open = 0;
  open[n_open++] = candidate(draft, from, 0, 0);
  while (draft.rows <= budget && n_open > 0) {
    int best = 0;
    for (int i = 1; i < n_open; ++i)
      if (is_before(open[i], open[best])) best = i;
    const Candidate chosen = open[best];
    open[best] = open[--n_open];
    const int32_t node = add(draft, from, chosen.parent, chosen.rank);
    if (chosen.rank + 1 < from.k) open[n_open++] = candidate(draft, from, chosen.parent, chosen.rank + 1);
    if (draft.depths[node] < from.depth) open[n_open++] = candidate(draft, from, node, 0);
  }
}

}  // namespace lb::drafting
