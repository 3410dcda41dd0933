// Geometry of the matrix products.
#pragma once

#include <cstddef>

#include "gpu/gemv/shape.h"
#include "ops/linear.h"
#include "ops/round_rows.h"
#include "pack/launch.h"
#include "pack/target.h"

namespace lb::gpu {

// One launch of the mat-vec.
struct GemvLaunch {
  Launch launch;
  Gemv params;
};
// What makes up a group, row after row of x: one launch for each weight type in it.
struct GemvLaunches {
  GemvLaunch launches[kMaxProducts];
  int n;
};

// Whether a group's quantised weights read a rounded x, and to how many bits: 8 or 16; 0 when x stays as it is.
int rounded_bits(const LinearGroup& group);

// Weights lie in planes (quant/planes.h). `x` is what round_rows makes of the group's x, when rounded_bits says so.
GemvLaunches choose(const LinearGroup& group, const RoundedRows& x, const Target& target);
Launch choose(const RoundRows& op, const Target& target);

// Bytes that have to move: weights once, x and add read, y written.
size_t bytes_of(const Linear& op);
size_t bytes_of(const LinearGroup& group);

}  // namespace lb::gpu
