// What the matrix products' kernels and their launch functions must agree on. Read by host and device.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "ops/linear.h"
#include "ops/round_rows.h"
#include "quant/planes.h"

namespace lb::gpu {

// linear_vec. Of x one form is read: p.group's fp32 rows by plain weights, the rounded ones by quantised weights.
struct LinearVec {
  LinearGroup group;
  RoundedRows x;                      // [rows, n_in]
  int row_threads;                    // threads that share a weight row: a multiple of 32
  int first_block[kMaxProducts + 1];  // blocks [first_block[i], first_block[i + 1]) have product i
};
// Threads of a block at most: of the kernels with one piece of a row a thread (two blocks to a multiprocessor), and of
// the wide ones for longer rows of plain and of quantised weights.
inline constexpr int kVecThreads = 256;
inline constexpr int kVecWideThreads = 512;
inline constexpr int kVecWideQuantThreads = 640;
inline constexpr int kVecPassRows = 256;  // rows of a block whose sums wait in shared memory at a time

}  // namespace lb::gpu
