// Measures the memory read bandwidth that benchmarks relate their numbers to.
#pragma once

#include <cstddef>

namespace lb {

// Best GB/s (1e9) of several passes over `bytes` of memory, split over `threads` threads.
double read_bandwidth(int threads, size_t bytes);

}  // namespace lb
