// CastRows with scales, for the wgmma GEMMs: f16 numbers with a scale per row. A block has a row; a thread converts 16
// values at a time. Bound: bandwidth, 6 bytes per value.
// Needs: wgmma
#include "dialect.h"

#include "gpu/gemm/store_cast.h"

namespace lb::gpu {

// n_in is a multiple of 16. A block keeps the values of kCastPasses passes in registers; what a longer row has beyond
// them is read twice, the second time from L2.
LB_KERNEL(cast_rows_f16_kernel, CastRows, kCastThreads, 1) {
  LB_SHARED(float, scratch, 32);
  const int row = block_id(), step = kCastValues * n_threads(), rest = first_value(kCastPasses);
  const float* from = p.x + long(row) * p.n_in;
  dependents_may_launch();
  wait_for_previous();
  CastValues v;
  read_values(from, p.n_in, v);
  float largest = 0;
  LB_UNROLL
  for (int pass = 0; pass < kCastPasses; ++pass) largest = largest_of(v[pass], largest);
  const auto read_rest = [&](int first, f32x4(&more)[4]) {
    LB_UNROLL
    for (int i = 0; i < 4; ++i) more[i] = first < p.n_in ? load<f32x4>(from + first + 4 * i) : f32x4{};
  };
  f32x4 more[4];
  for (int first = rest; first < p.n_in; first += step) {
    read_rest(first, more);
    largest = largest_of(more, largest);
  }
  const RowScale scale(block_max(largest, scratch));
  if (thread_id() == 0) store_f16_scale(p, row, scale.inverse);
  LB_UNROLL
  for (int pass = 0; pass < kCastPasses; ++pass)
    if (first_value(pass) < tiled_values(p.n_in)) store_f16(p, row, first_value(pass), v[pass], scale.factor);
  for (int first = rest; first < tiled_values(p.n_in); first += step) {
    read_rest(first, more);
    store_f16(p, row, first, more, scale.factor);
  }
}

}  // namespace lb::gpu
