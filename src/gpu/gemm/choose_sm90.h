// Prompts on sm_90 (gemm_sm90.h): the tile, and how the tiles are shared over the blocks.
#pragma once

#include <cstddef>
#include <optional>

#include "gpu/gemm/shape.h"
#include "pack/target.h"

namespace lb::gpu {

struct WarpgroupCut {
  const char* kernel;
  int tile_rows, tile_outs;
  int n_blocks, n_whole_tiles;
  size_t shared_bytes;
};

// For a group of one type; nothing where the pack has no wgmma kernel for the type.
std::optional<WarpgroupCut> choose_warpgroup_cut(const LinearGroup& group, const Target& target);

}  // namespace lb::gpu
