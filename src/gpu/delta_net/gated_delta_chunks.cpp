// Gated DeltaNet over chunks of up to 64 rows, for every shape and target (equations in ops/delta_net.h). With A_ij =
// beta_i E_ij (k_i.k_j) for strict ancestors j of i and M = (I + A)^-1, a chunk is
//   delta = M beta (v - e^cs S^T k)        o = e^cs S^T q + P delta,  P_ij = E_ij (q_i.k_j) for ancestors or i itself
// Two kernels:
//   gated_delta_pairs_kernel    a block per chunk and value head. M diag(beta), P and cs do not depend on S, so all
//                               chunks of a long chain run in parallel. Leaves the last chunk's keys and cs pending.
//   gated_delta_chunks*_kernel  a block per 16 or 32 columns of a value head's S. Its slice of S stays in shared
//                               memory for all chunks: S is read and written once per append.
// All arithmetic is fp32. Rows are zero-padded to 32 for appends of up to 32 rows, else to 64.
//
// Asynchronous copies bring tiles into a ring in shared memory ahead of their use. Threads that read one tile row are
// 16 or more rows apart, so that a warp's 16-byte reads have no bank conflicts.
// Bound: arithmetic: 64 (128 + 128 + 128 + 64) dv multiply-adds per chunk and value head at dk = 128, and 64 x 256 for
// the pairs.
#include "dialect.h"

#include "gpu/delta_net/chunk_pairs.h"
#include "gpu/delta_net/chunk_recurrence.h"

namespace lb::gpu {

LB_KERNEL(gated_delta_pairs_kernel, DeltaWork, kPairThreads, 2) {
  LB_SHARED(f32x4, buffers, kRingFloats / 4);
  LB_SHARED(float, sums, 16 * 48);
  LB_SHARED(Gates, gates, 1);
  wait_for_previous();
  dependents_may_launch();  // after the wait, so dependents may rely on everything older than this kernel
  float* memory = reinterpret_cast<float*>(&buffers[0]);
  if (p.op.rows <= 32)
    make_pairs<32>(p, memory, sums, &gates[0]);
  else
    make_pairs<64>(p, memory, sums, &gates[0]);
}

LB_KERNEL(gated_delta_chunks16_kernel, DeltaWork, kChunkThreads, 1) {
  LB_SHARED(Path, path, 1);
  if (p.op.rows <= 32)
    run_chunks<16, 32>(p, dynamic_shared<float>(), &path[0]);
  else
    run_chunks<16, 64>(p, dynamic_shared<float>(), &path[0]);
}
LB_KERNEL(gated_delta_chunks32_kernel, DeltaWork, kChunkThreads, 1) {
  LB_SHARED(Path, path, 1);
  if (p.op.rows <= 32)
    run_chunks<32, 32>(p, dynamic_shared<float>(), &path[0]);
  else
    run_chunks<32, 64>(p, dynamic_shared<float>(), &path[0]);
}

}  // namespace lb::gpu
