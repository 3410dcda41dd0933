// Thread blocks that run beside each other, from sm_90 on; elsewhere a cluster is one block.
#pragma once

namespace lb::gpu {

// Of all threads of a cluster: what they have written before is seen by all behind it, in global memory too. A warp
// arrives once: one that had not come together again would arrive for each of its parts.
LB_DEVICE void cluster_barrier() {
#if __CUDA_ARCH__ >= 900
  __syncwarp();
  asm volatile("barrier.cluster.arrive.release;\n\tbarrier.cluster.wait.acquire;" ::: "memory");
#else
  block_barrier();
#endif
}

}  // namespace lb::gpu
