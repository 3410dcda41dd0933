// CastRows to fp8 numbers with a scale per row and 128 values. Grid: x walks a row, y the rows. A thread converts 16
// values. Bound: bandwidth, 5 bytes per value.
// Needs: fp8
#include "dialect.h"

#include "gpu/gemm/store_cast.h"

namespace lb::gpu {

// Eight neighbouring lanes convert the 128 values of a scale. n_in is a multiple of 128.
LB_KERNEL(cast_rows_f8_kernel, CastRows, 256, 1) {
  const int first = (block_id() * n_threads() + thread_id()) * kCastValues, row = block_id_y();
  dependents_may_launch();
  wait_for_previous();
  const bool is_inside = first < p.n_in;
  const float* from = p.x + long(row) * p.n_in + first;
  f32x4 v[4];
  LB_UNROLL
  for (int i = 0; i < 4; ++i) v[i] = is_inside ? load<f32x4>(from + 4 * i) : f32x4{};
  store_fp8(p, row, first, v, is_inside);
}

}  // namespace lb::gpu
