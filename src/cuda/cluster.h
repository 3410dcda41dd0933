// Thread blocks that run beside each other, from sm_90 on; elsewhere a cluster is one block.
#pragma once

namespace lb::gpu {

// Of all threads of a cluster: what they have written before is seen by all behind it, in global memory too.
LB_DEVICE void cluster_barrier() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory");
#else
  block_barrier();
#endif
}

}  // namespace lb::gpu
