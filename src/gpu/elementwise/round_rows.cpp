// Rounds rows of activations for the products with quantised weights: RoundRows, where the kernel that made them has
// not done so. Eight lanes a run of 32, four values a lane; grid x walks a row, y the rows. Bound: latency; 4 bytes a
// value in, 1.25 or 2.25 out.
#include "dialect.h"

#include "gpu/round_block.h"

namespace lb::gpu {

LB_KERNEL(round_rows_kernel, RoundRows, 256, 1) {
  dependents_may_launch();
  wait_for_previous();
  const long row = long(block_id_y()) * p.n_in;
  const int first = (block_id() * n_threads() + thread_id()) * 4;
  const bool is_inside = first < p.n_in;  // of whole runs: the eight lanes of one agree
  round_four(p.y, row + first, is_inside ? load<f32x4>(p.x + row + first) : f32x4{}, is_inside);
}

}  // namespace lb::gpu
