// One block a row, a thread a value: rows are short and few, codes come by whole sectors all the same.
// Bound: latency; the bytes of a row and 4 bytes a value.
// dependents_may_launch() comes second: all kernels of a step behind this one may rely, ahead of their own wait, on
// what lies before it (the rotation's table, n_past, the page table, older rows of the cache).
#include "dialect.h"

#include "gpu/elementwise/embed_row.h"

namespace lb::gpu {

LB_KERNEL(embed_kernel, Embed, 256, 1) {
  wait_for_previous();
  dependents_may_launch();
  float* y = p.y + long(block_id()) * p.dim;
  embed_row(p, block_id(), thread_id(), n_threads(), [&](int i, float value) { y[i] = value; });
}

}  // namespace lb::gpu
