// Measures the host's memory read bandwidth, the yardstick of CPU benchmarks.
#pragma once

#include <cstddef>

namespace lb {

// The best of six passes over `bytes` bytes, split over `threads` threads, in GB/s (1e9 bytes a second).
double read_bandwidth(int threads, size_t bytes);

}  // namespace lb
