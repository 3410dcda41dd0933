// Kernels, grids and parameters of the ops on experts. Each choose() is pure. It throws, naming the op, if the pack has
// no kernel for the op.
#pragma once

#include "gpu/experts/shape.h"
#include "ops/experts.h"
#include "pack/launch.h"
#include "pack/target.h"

namespace lb::gpu {

struct ExpertLaunch {
  Launch launch;
  ExpertGemv params;
};

Launch choose(const RouteExperts& op, const Target& target);
Launch choose(const CombineExperts& op, const Target& target);

// Bits to which the op needs x rounded: 8 or 16; 0 for plain weights, which read fp32 x.
int rounded_bits(const ExpertLinear& op);
// The number of rows of x.
int x_rows(const ExpertLinear& op);
// x: the op's x rounded; unused if rounded_bits() is 0.
ExpertLaunch choose(const ExpertLinear& op, const RoundedRows& x, const Target& target);

}  // namespace lb::gpu
