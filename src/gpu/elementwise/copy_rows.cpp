// CopyRows: copies rows into columns of a wider matrix, or into a ring. A thread copies four values, or one if rows are
// unaligned. Bound: latency for few rows, else bandwidth, 8 bytes per value.
#include "dialect.h"

#include "gpu/batched.h"
#include "gpu/elementwise/rows.h"
#include "ops/copy_rows.h"

namespace lb::gpu {

template <int kWidth>
LB_DEVICE void copy_parts(const CopyRows& p) {
  const int row_parts = p.dim / kWidth;
  const long count = long(p.rows) * row_parts, step = long(n_blocks()) * n_threads();
  const int first = p.first == nullptr ? 0 : *p.first;
  for (long i = long(block_id()) * n_threads() + thread_id(); i < count; i += step) {
    const long row = i / row_parts, part = i % row_parts;
    store(p.y + (first + row) % p.y_rows * p.y_stride + part * kWidth, load<Vec<float, kWidth>>(p.x + i * kWidth));
  }
}

LB_DEVICE void copy_rows(const CopyRows& p) {
  wait_for_previous();
  dependents_may_launch();
  const bool is_wide = is_aligned(p.x, p.dim) && is_aligned(p.y, p.y_stride);
  is_wide ? copy_parts<4>(p) : copy_parts<1>(p);
}

LB_KERNEL(copy_rows_kernel, CopyRows, 256, 1) { copy_rows(p); }
LB_KERNEL(copy_rows_kernel_batched, Batched<CopyRows>, 256, 1) { copy_rows(p.of[block_id_z()]); }

}  // namespace lb::gpu
