// Barrier of a thread block cluster, whose blocks are co-resident.
#pragma once

namespace lb::gpu {

inline void cluster_barrier(sim::Location where = sim::Location::current()) {
  sim::machine().arrive_at_cluster({"cluster_barrier", where});
}

}  // namespace lb::gpu
