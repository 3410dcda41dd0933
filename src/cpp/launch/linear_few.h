// How the product of a few rows is cut where its weights go straight into registers (src/gpu/linear_few.h).
#pragma once

#include <cstddef>
#include <optional>

#include "launch/linear_few_shape.h"
#include "launch/target.h"

namespace lb::gpu {

struct FewCut {
  const char* kernel;
  int tile_rows, n_slices, n_ranges, range_tiles;
  bool is_cluster;
  size_t shared_bytes;
};

// Of a group of one type whose x is rounded to 8 bits; none where the target's pack has no kernel for it.
std::optional<FewCut> cut_for_few(const LinearGroup& group, const Target& target);

}  // namespace lb::gpu
