// Thread block clusters, from sm_90; on older chips a cluster is one block.
#pragma once

namespace lb::gpu {

// A barrier of all threads of a cluster. Writes before it, also to global memory, are visible to all threads after it.
// __syncwarp() makes the warp arrive once: a diverged warp would arrive once per part.
LB_DEVICE void cluster_barrier() {
#if __CUDA_ARCH__ >= 900
  __syncwarp();
  asm volatile("barrier.cluster.arrive.release;\n\tbarrier.cluster.wait.acquire;" ::: "memory");
#else
  block_barrier();
#endif
}

}  // namespace lb::gpu
