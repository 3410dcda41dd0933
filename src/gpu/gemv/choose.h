// Chooses a GEMV kernel, its geometry and its parameters for a group.
#pragma once

#include <cstddef>

#include "gpu/gemv/shape.h"
#include "ops/linear.h"
#include "ops/round_rows.h"
#include "pack/launch.h"
#include "pack/target.h"

namespace lb::gpu {

struct GemvLaunch {
  Launch launch;
  Gemv params;
};
// One launch per weight type of the group. Each launch covers all rows of x (grid y).
struct GemvLaunches {
  GemvLaunch launches[kMaxProducts];
  int n;
};

// Bits to which the group's quantised weights need x rounded: 8 or 16; 0 for plain weights, which read fp32 x.
int rounded_bits(const LinearGroup& group);

// Weights are in planes (quant/planes.h). `x` is the output of round_rows for the group's x; unused if rounded_bits()
// is 0.
GemvLaunches choose(const LinearGroup& group, const RoundedRows& x, const Target& target);
// Whether a thread multiplies one piece of a row: a sum then adds warp_sum() of each 32 pieces, in their order.
bool sums_by_warp(const LinearGroup& group, const Target& target);
Launch choose(const RoundRows& op, const Target& target);

// Bytes that must move: weights once; x and add read, y written.
size_t bytes_of(const Linear& op);
size_t bytes_of(const LinearGroup& group);

}  // namespace lb::gpu
