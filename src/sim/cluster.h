// The blocks of a cluster, which are alive at once.
#pragma once

namespace lb::gpu {

inline void cluster_barrier(sim::Location where = sim::Location::current()) {
  sim::machine().arrive_at_cluster({"cluster_barrier", where});
}

}  // namespace lb::gpu
