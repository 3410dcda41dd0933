// What a kernel needs besides its op to spread one row over all blocks of a grid: a barrier, a place for partial
// results.
#pragma once

#include <stdint.h>

namespace lb {

inline constexpr int kGridPartialBytes = 8;  // a block leaves this much for each row

struct GridWork {
  uint32_t* barrier;  // [1], zero before its first use; grids of any size may share it one after another
  void* partials;     // [rows, blocks] of kGridPartialBytes
};

template <class Op>
struct OnGrid {
  Op op;
  GridWork work;
};

}  // namespace lb
