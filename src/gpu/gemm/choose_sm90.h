// Prompts on sm_90 (gemm_sm90.h): the tile, and how the tiles are shared over the blocks.
#pragma once

#include <optional>

#include "gpu/gemm/choose_config.h"
#include "pack/target.h"

namespace lb::gpu {

// For a group of one type; nothing where the pack has no wgmma kernel for the type.
std::optional<GemmConfig> choose_warpgroup_config(const LinearGroup& group, const Target& target);

}  // namespace lb::gpu
