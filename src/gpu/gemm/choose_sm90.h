// Chooses tiles, and how blocks share them, for the wgmma GEMM on sm_90 (gemm_sm90.h).
#pragma once

#include <optional>

#include "gpu/gemm/choose_config.h"
#include "pack/target.h"

namespace lb::gpu {

// Config of a group of one type; nullopt if the pack has no wgmma kernel for the type.
std::optional<GemmConfig> choose_warpgroup_config(const LinearGroup& group, const Target& target);

}  // namespace lb::gpu
