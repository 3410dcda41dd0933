// Walks a verified tree by one token (ops/walk_step.h). One warp: lane l looks at nodes l and l + 32. Bound: latency of
// a write across the bus, which nothing waits for.
#include "dialect.h"

#include "gpu/sampling/next_token.h"
#include "ops/walk_step.h"

namespace lb::gpu {

// The row of the node's child that holds the token; -1: none.
LB_DEVICE int child_with(const Draft& draft, int node, int32_t token) {
  int32_t found = kMaxTree;
  for (int i = lane(); i < draft.rows; i += 32)
    if (draft.parents[i] == node && draft.tokens[i] == token) found = min(found, i);
  found = warp_min(found);
  return found < kMaxTree ? found : -1;
}

LB_KERNEL(walk_step_kernel, WalkStep, 32, 1) {
  wait_for_previous();
  const int node = p.cursor->row;
  if (node < 0) return;
  const int32_t token = p.sampled->token;
  const uint32_t n_written = *p.n_written;
  const int child = p.sampled->problem == SampleProblem::kNone ? child_with(*p.draft, node, token) : -1;
  warp_barrier();  // all lanes have read before one writes
  if (lane() == 0) {
    p.cursor->row = p.sampled->row = child;
    *p.token = token;
    *p.n_written = n_written + 1;
  }
  warp_barrier();  // the row is published too
  publish(p.sampled, p.ring, n_written);
}

}  // namespace lb::gpu
