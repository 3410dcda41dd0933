// Grids of the exchanges between ranks. Pure functions; they throw, naming the op, if the pack has no kernel for it.
#pragma once

#include "ops/all_reduce.h"
#include "pack/launch.h"
#include "pack/target.h"

namespace lb::gpu {

// The op has at most ranks.max_values values of each rank.
Launch choose(const AllReduce& op, const Target& target);
Launch choose(const AllGather& op, const Target& target);

}  // namespace lb::gpu
