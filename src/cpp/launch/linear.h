// Geometry of the matrix products.
#pragma once

#include <cstddef>

#include "launch/launch.h"
#include "launch/target.h"
#include "ops/linear.h"

namespace lb::gpu {

// The mat-vec: one kernel for a whole group, row after row of x. Weights lie in planes (quant/planes.h); x is 16-byte
// aligned where a block type is rounded to 8 bits. In a group, int8 products and fp32 ones cannot be one launch.
Launch choose(const LinearGroup& group, const Target& target);

// Many rows on matrix units: F16 or BF16 weights, x rounded to their type.
Launch choose_tile(const Linear& op, const Target& target);

// Bytes that have to move: weights once, x and add read, y written.
size_t bytes_of(const Linear& op);
size_t bytes_of(const LinearGroup& group);

}  // namespace lb::gpu
