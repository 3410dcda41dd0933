// RouteExperts: the k experts with the largest logits of a row, and their weights. A warp per row. Bound: latency.
#include "dialect.h"

#include "gpu/experts/route.h"

namespace lb::gpu {

LB_KERNEL(route_experts_kernel, RouteExperts, kRouteThreads, 1) {
  dependents_may_launch();
  wait_for_previous();
  const int row = block_id() * n_warps() + warp();
  if (row < p.rows) route(p, row);
}

}  // namespace lb::gpu
