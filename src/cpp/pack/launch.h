// How one kernel is started: what the functions choose(op, target) return and the device layer carries out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <string>

namespace lb::gpu {

// is_one_wave: what such a block waits for has an id near its own, hardware starts blocks in the order of their ids,
// and all of them have room at once, which Pack::run checks. So whoever is waited for is running or gets the room of
// what ran before: kernels end by themselves, and dependents start only when the whole grid has begun. A cooperative
// launch would promise as much, and not overlap the launch before.
struct Launch {
  const char* kernel;  // a string constant: names live as long as the program
  uint32_t grid[3] = {1, 1, 1};
  uint32_t block[3] = {1, 1, 1};
  size_t shared_bytes = 0;        // dynamic
  bool cooperative = false;       // all blocks alive at once: the kernel has a grid barrier
  bool is_one_wave = false;       // blocks wait for others of the grid
  uint32_t cluster = 0;           // blocks of a cluster; 0: none
  bool keeps_l1 = false;          // much is read through L1: it keeps a good part of what shared memory could have
  bool overlap_previous = false;  // may begin while the kernel before it ends (it calls wait_for_previous)
};

// gemv_q4_k_int8_kernel<<<[264, 1, 1], [256, 1, 1], 5120 B>>> overlap
std::ostream& operator<<(std::ostream& out, const Launch& launch);
std::string to_string(const Launch& launch);

}  // namespace lb::gpu
