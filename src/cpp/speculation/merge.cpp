#include "speculation/merge.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "ops/draft_rules.h"

namespace lb {

Draft merge(const Draft& a, const Draft& b, int max_rows) {
  // The union: a's nodes, then b's nodes that are not in a.
  struct Node {
    int32_t token, parent;
    float score;
  };
  constexpr int kMaxNodes = 2 * kMaxTree;
  std::array<Node, kMaxNodes> nodes;
  int n = 0;
  std::array<int, kMaxTree> place;  // index in `nodes` of each row of b
  for (int i = 0; i < a.rows; ++i) nodes[n++] = {a.tokens[i], a.parents[i], a.scores[i]};
  for (int i = 0; i < b.rows; ++i) {
    const int parent = i == 0 ? -1 : place[b.parents[i]];
    int at = 0;
    while (at < n && (nodes[at].parent != parent || nodes[at].token != b.tokens[i])) ++at;
    LB_ASSERT(i > 0 || at == 0);  // one root
    if (at == n) {
      nodes[n++] = {b.tokens[i], parent, b.scores[i]};
    } else {
      nodes[at].score = std::max(nodes[at].score, b.scores[i]);
    }
    place[i] = at;
  }
  Draft merged{};
  if (n == 0 || max_rows < 1) return merged;

  std::array<int, kMaxNodes> row;  // row of each node in `merged`; -1: absent
  row.fill(-1);
  drafting::start(merged, nodes[0].token);
  row[0] = 0;
  const auto is_better = [&](int i, int best) {
    if (best < 0 || nodes[i].score != nodes[best].score) return best < 0 || nodes[i].score > nodes[best].score;
    return row[nodes[i].parent] < row[nodes[best].parent];  // siblings keep their order
  };
  while (merged.rows < std::min(max_rows, kMaxTree)) {
    int best = -1;
    for (int i = 1; i < n; ++i)
      if (row[i] < 0 && row[nodes[i].parent] >= 0 && is_better(i, best)) best = i;
    if (best < 0) break;
    row[best] = drafting::add(merged, nodes[best].token, row[nodes[best].parent], nodes[best].score);
  }
  return merged;
}

}  // namespace lb
