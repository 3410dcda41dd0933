// y[r] = x[parent(r)], or the last committed row if r has no parent. Keeps the last committed row across appends.
//
// A block handles 32 columns of one chunk of rows; eight teams of 32 threads share the rows. Blocks of the first chunk
// also update the state: they read the committed row before the barrier, and overwrite history and pending rows after
// it with the last chunk's rows. Blocks of later chunks read only x.
// Bound: bandwidth, 8 bytes per value plus 8 per value of the last chunk.
#include "dialect.h"

#include "gpu/draft/shape.h"
#include "ops/previous_row.h"

namespace lb::gpu {

LB_KERNEL(previous_row_kernel, PreviousRow, kPreviousThreads, 1) {
  constexpr int kTeams = kPreviousThreads / kPreviousColumns;
  LB_SHARED(float, committed, kPreviousColumns);
  wait_for_previous();
  dependents_may_launch();
  const int column = thread_id() % kPreviousColumns, team = thread_id() / kPreviousColumns;
  const int c = block_id() * kPreviousColumns + column, first_row = block_id_y() * kMaxTree;
  const bool is_inside = c < p.dim, keeps_state = first_row == 0;
  const auto at = [&](int row) { return long(row) * p.dim + c; };
  if (keeps_state && is_inside && team == 0) {
    const int n = p.accepted.n ? *p.accepted.n : 0;
    committed[column] = n > 0 ? p.pending[at(p.accepted.path[n - 1])] : p.history[c];
  }
  block_barrier();
  if (!is_inside) return;
  const int end = min(p.rows, first_row + kMaxTree);
  for (int r = first_row + team; r < end; r += kTeams) {
    const int parent = p.tree.parent ? p.tree.parent[r] : r - 1;
    float value;
    if (parent >= 0)
      value = p.x[at(parent)];
    else
      value = committed[column];
    p.y[at(r)] = value;
  }
  if (!keeps_state) return;
  const int last_chunk = p.rows > 0 ? (p.rows - 1) / kMaxTree * kMaxTree : 0;
  if (team == 0) {
    const float kept = committed[column];
    p.history[c] = last_chunk > 0 ? p.x[at(last_chunk - 1)] : kept;
  }
  for (int r = last_chunk + team; r < p.rows; r += kTeams) p.pending[at(r - last_chunk)] = p.x[at(r)];
}

}  // namespace lb::gpu
