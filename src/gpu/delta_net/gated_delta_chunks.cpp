// Gated DeltaNet over chunks of up to 64 rows (equations in ops/delta_net.h), in two kernels. With A_ij = beta_i E_ij
// (k_i.k_j) for strict ancestors j of i and M = (I + A)^-1, a chunk is
//   delta = M beta (v - e^cs S^T k)        o = e^cs S^T q + P delta,  P_ij = E_ij (q_i.k_j) for ancestors or i itself
//   gated_delta_pairs_kernel  a block a chunk of a value head: M diag(beta), P and cs, which need no S, so all chunks
//   of a
//                             long chain at once; also leaves the last chunk's keys and cs pending
//   gated_delta_chunks_kernel   a block a slice of columns of a value head: its part of S stays in shared memory, chunk
//                             after chunk, each folding the one before. S is read and written once an append.
// Everything fp32. Rows are padded with zeros: to 32 where an append has no more, else to 64.
//
// Tiles pass through a ring of buffers, copied while those before them are used. Threads in a row of tiles are 16 or
// more rows apart, so that the 16-byte reads of a warp fall into different banks.
// Bound: arithmetic, 64 (128 + 128 + 128 + 64) dv multiply-adds a chunk and value head at dk = 128, and 64 x 256 for
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
  dependents_may_launch();  // after the wait: who starts then may rely on all that lies before this kernel
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
