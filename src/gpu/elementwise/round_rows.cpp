// RoundRows, for activations that the previous kernel could not round itself. Eight lanes per block of 32 values, four
// values per lane. Grid x: a row; y: rows.
// Bound: latency; per value 4 bytes read, 1.25 or 2.25 written.
#include "dialect.h"

#include "gpu/round_block.h"

namespace lb::gpu {

LB_KERNEL(round_rows_kernel, RoundRows, 256, 1) {
  dependents_may_launch();
  wait_for_previous();
  const long row = long(block_id_y()) * p.n_in;
  const int first = (block_id() * n_threads() + thread_id()) * 4;
  const bool is_inside = first < p.n_in;  // the same for the eight lanes of a block: n_in is a multiple of 32
  round_four(p.y, row + first, is_inside ? load<f32x4>(p.x + row + first) : f32x4{}, is_inside);
}

}  // namespace lb::gpu
