// One block a row, a thread a value: rows are short and few, codes come by whole sectors all the same.
// Bound: latency; the bytes of a row and 4 bytes a value.
#include "dialect.h"

#include "embed_row.h"

namespace lb::gpu {

LB_KERNEL(embed_kernel, Embed, 256, 1) {
  dependents_may_launch();
  wait_for_previous();
  embed_row(p, block_id(), thread_id(), n_threads());
}

}  // namespace lb::gpu
