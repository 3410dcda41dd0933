// GrowTree: grows a draft tree best-first (ops/draft_rules.h), one warp per sequence.
//
// Lane l keeps the open candidates of nodes l and l + 32: the first child and the next sibling of each. In every turn
// the warp takes the best open candidate, and the new node's lane opens two more. All values equal the CPU's: a score
// is one addition.
// Bound: latency, max_rows turns of two reductions and reads of shared memory.
#include "dialect.h"

#include "ops/draft_rules.h"
#include "ops/grow_tree.h"

namespace lb::gpu {

LB_DEVICE uint64_t first_of(uint64_t a, uint64_t b) { return a > b ? a : b; }

// The largest of the warp's numbers; 0 means none.
LB_DEVICE uint64_t warp_first(uint64_t order) {
  constexpr uint32_t kSign = 0x80000000u;  // maps unsigned to signed order, for which chips have a warp maximum
  const int high = int(uint32_t(order >> 32) ^ kSign), largest = warp_max(high);
  const bool is_first = order != 0 && high == largest;
  const int low = warp_max(is_first ? int(uint32_t(order) ^ kSign) : int(kSign));
  return low == int(kSign) ? 0 : uint64_t(uint32_t(largest) ^ kSign) << 32 | (uint32_t(low) ^ kSign);
}

LB_KERNEL(grow_tree_kernel, GrowTree, 32, 1) {
  LB_SHARED(float, logprobs, kMaxTree* kMaxTopTokens);
  LB_SHARED(float, scores, kMaxTree);
  LB_SHARED(int32_t, parents, kMaxTree);
  LB_SHARED(int32_t, depths, kMaxTree);
  LB_SHARED(int32_t, sources, kMaxTree);  // index of the node's token among the candidates
  LB_SHARED(uint64_t, ancestors, kMaxTree);
  wait_for_previous();
  dependents_may_launch();
  const int sequence = block_id(), n_candidates = p.depth * p.k;
  const int32_t* ids = p.ids + long(sequence) * n_candidates;
  for (int i = lane(); i < n_candidates; i += 32) logprobs[i] = p.logprobs[long(sequence) * n_candidates + i];
  if (lane() == 0) scores[0] = 0, parents[0] = -1, depths[0] = 0, ancestors[0] = 1;
  warp_barrier();

  // Open candidates of nodes lane() and lane() + 32; 0: none. Scalars, because an array would be in local memory.
  uint64_t child = 0, sibling = 0, high_child = 0, high_sibling = 0;
  if (lane() == 0) child = drafting::order_of(float(logprobs[0]), 0, 0);
  int n = 1;
  for (; n < p.max_rows; ++n) {
    const uint64_t first = warp_first(first_of(first_of(child, sibling), first_of(high_child, high_sibling)));
    if (first == 0) break;
    child = child == first ? 0 : child;
    sibling = sibling == first ? 0 : sibling;
    high_child = high_child == first ? 0 : high_child;
    high_sibling = high_sibling == first ? 0 : high_sibling;
    const int parent = drafting::parent_in(first), rank = drafting::rank_in(first);
    const int depth = depths[parent], at = depth * p.k + rank;
    const float before = scores[parent], score = before + logprobs[at];
    if (lane() == n % 32) {
      const uint64_t down =
          depth + 1 < p.depth ? drafting::order_of(score + logprobs[(depth + 1) * p.k], n, 0) : uint64_t(0);
      const uint64_t beside =
          rank + 1 < p.k ? drafting::order_of(before + logprobs[at + 1], parent, rank + 1) : uint64_t(0);
      const bool is_high = n >= 32;
      child = is_high ? child : down;
      sibling = is_high ? sibling : beside;
      high_child = is_high ? down : high_child;
      high_sibling = is_high ? beside : high_sibling;
      scores[n] = score, parents[n] = parent, depths[n] = depth + 1, sources[n] = at;
      ancestors[n] = ancestors[parent] | uint64_t(1) << n;
    }
    warp_barrier();
  }

  const long row = long(sequence) * p.max_rows;
  const int n_past = p.n_past[sequence];
  for (int i = lane(); i < n; i += 32) {
    p.tokens[row + i] = i == 0 ? p.root[sequence] : ids[sources[i]];
    p.parents[row + i] = parents[i];
    p.depths[row + i] = depths[i];
    p.scores[row + i] = scores[i];
    p.ancestors[row + i] = ancestors[i];
    if (i >= p.rows) continue;
    for (int axis = 0; axis < 3; ++axis) p.positions[(3L * sequence + axis) * p.rows + i] = n_past + depths[i];
  }
  if (lane() == 0) p.n_rows[sequence] = n;
}

}  // namespace lb::gpu
