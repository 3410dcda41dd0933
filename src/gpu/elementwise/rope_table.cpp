// RopeTable: one thread per pair. Bound: fp64 arithmetic, about 40 operations per pair, once per append.
#include "dialect.h"

#include "gpu/elementwise/rope_angles.h"

namespace lb::gpu {

LB_KERNEL(rope_table_kernel, RopeTable, 256, 1) {
  dependents_may_launch();
  wait_for_previous();
  rope_angles(p, long(block_id()) * n_threads() + thread_id(), long(n_blocks()) * n_threads());
}

}  // namespace lb::gpu
