// Launch: kernel, grid, block and flags of one kernel launch. The choose(op, target) functions return it; Pack::run
// sends it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <string>

namespace lb::gpu {

// is_one_wave: blocks spin on each other, so all must be co-resident; Pack::run checks grid <= SMs. Unlike a
// cooperative launch, the launch can overlap the previous one. The spin cannot deadlock: a block waits only for blocks
// with nearby ids, and hardware starts blocks in the order of their ids. So the awaited block is running, or starts
// once the previous kernel frees its SMs, and that kernel waits for nothing here. Dependent launches start only after
// the whole grid has started.
struct Launch {
  const char* kernel;  // a string constant: names live as long as the program
  uint32_t grid[3] = {1, 1, 1};
  uint32_t block[3] = {1, 1, 1};
  size_t shared_bytes = 0;   // dynamic
  bool cooperative = false;  // all blocks co-resident: the kernel has a grid barrier
  bool is_one_wave = false;  // all blocks co-resident, without a cooperative launch
  uint32_t cluster = 0;      // blocks per cluster; 0: no clusters
  bool keeps_l1 = false;     // the carve-out leaves part of the SM's memory to L1: the kernel reads a lot through it
  bool overlap_previous = false;  // may start before the previous kernel ends: the kernel calls wait_for_previous
};

// gemv_q4_k_int8_kernel<<<[264, 1, 1], [256, 1, 1], 5120 B>>> overlap
std::ostream& operator<<(std::ostream& out, const Launch& launch);
std::string to_string(const Launch& launch);

}  // namespace lb::gpu
