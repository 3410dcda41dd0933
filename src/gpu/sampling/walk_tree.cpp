// Walks down a verified tree (ops/walk_tree.h): runs the sampler on one row after another, in one cooperative launch.
// Every block finds the child that holds the chosen token; block 0 publishes the token and accepts the path.
// Bound: latency; per token of the path, the sampler's grid barriers and one more.
#include "dialect.h"

#include "gpu/sampling/next_token.h"
#include "gpu/sampling/sample_token.h"
#include "ops/walk_tree.h"

namespace lb::gpu {

// The row of the node's child that holds the token; -1: none. Called by one warp.
LB_DEVICE int child_with(const WalkTree& op, int node, int32_t token) {
  int32_t found = kMaxTree;
  for (int i = lane(); i < op.rows; i += 32)
    if (op.parents[i] == node && op.tokens[i] == token) found = min(found, i);
  found = warp_min(found);
  return found < kMaxTree ? found : -1;
}

// The row of the node's first child; -1: none. Called by one warp.
LB_DEVICE int first_child(const WalkTree& op, int node) {
  int32_t found = kMaxTree;
  for (int i = lane(); i < op.rows; i += 32)
    if (op.parents[i] == node) found = min(found, i);
  found = warp_min(found);
  return found < kMaxTree ? found : -1;
}

// The next row to sample after a choice; -1: the walk is over. n_path: rows before this one.
LB_DEVICE int next_row(const WalkTree& op, int row, int n_path, const Sampled& chosen) {
  if (chosen.problem != SampleProblem::kNone) return -1;
  if (op.replay_length < 0) return child_with(op, row, chosen.token);
  return n_path < op.replay_length ? first_child(op, row) : -1;
}

// Accepts the path after the walk. Called by one warp. n: rows of the path.
LB_DEVICE void accept(const AcceptPath& p, int n, int32_t root) {
  if (p.n_past == nullptr) return;
  const int before = *p.n_past, buffer = *p.key_buffer;
  warp_barrier();  // all lanes have read before any lane writes
  for (int i = lane(); i < p.n_positions; i += 32)
    for (int axis = 0; axis < 3; ++axis) p.positions[axis * p.n_positions + i] = before + n + i;
  if (lane() != 0) return;
  *p.n_before = before;
  *p.n_past = before + n;
  *p.last_slot = before + n - 1;
  *p.key_buffer = buffer ^ 1;
  *p.n_accepted = n;
  *p.root = root;
}

LB_KERNEL(walk_tree_kernel, WalkOnGrid, 512, 1) {
  LB_SHARED(uint64_t, scratch, kScratch);
  LB_SHARED(int32_t, next, 1);
  wait_for_previous();
  const WalkTree& op = p.op;
  Sampled* result = p.sample.op.result;
  const bool is_first_warp = warp() == 0, publishes = block_id() == 0 && is_first_warp;
  uint32_t n_written = *op.n_written;
  int n_path = 0;
  for (int row = op.first; row >= 0;) {
    sample(p.sample, row, scratch);
    grid_barrier(&p.sample.grid->barrier);  // the result is complete, and no block reads the grid's rows any more
    if (is_first_warp) {
      const int child = next_row(op, row, n_path, *result);
      if (lane() == 0) next[0] = child;
      if (publishes) {
        const int32_t token = op.replay_length >= 0 && child >= 0 ? op.tokens[child] : result->token;
        warp_barrier();  // all lanes have read before any lane writes
        if (lane() == 0) {
          result->token = token;
          result->row = child;
          if (op.accept.n_past != nullptr) op.accept.accepted[n_path] = row;
        }
        warp_barrier();  // the row is published too
        publish(result, op.ring, n_written);
        if (child < 0) {
          accept(op.accept, n_path + 1, token);
          if (lane() == 0) {
            *op.token = token;
            *op.n_written = n_written + 1;
          }
        }
      }
    }
    block_barrier();
    row = next[0];
    ++n_written;
    ++n_path;
  }
}

}  // namespace lb::gpu
