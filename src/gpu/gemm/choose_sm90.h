// How the product of a prompt is cut into tiles and shared out where warpgroups multiply (src/gpu/gemm/gemm_sm90.h).
#pragma once

#include <cstddef>
#include <optional>

#include "gpu/gemm/shape.h"
#include "pack/target.h"

namespace lb::gpu {

struct WarpgroupCut {
  const char* kernel;
  int tile_rows, tile_outs;
  int n_blocks, n_whole;
  size_t shared_bytes;
};

// Of a group of one type; none where the target's pack has no such kernel.
std::optional<WarpgroupCut> cut_for_warpgroups(const LinearGroup& group, const Target& target);

}  // namespace lb::gpu
