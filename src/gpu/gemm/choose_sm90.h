// Chooses tiles, and how blocks share them, for the wgmma GEMM on sm_90 (gemm_sm90.h).
#pragma once

#include <optional>

#include "gpu/gemm/choose_config.h"
#include "pack/target.h"

namespace lb::gpu {

// Config of a group of one type; nullopt if the pack has no wgmma kernel for the type.
std::optional<GemmConfig> choose_warpgroup_config(const LinearGroup& group, const Target& target);

// Config that computes silu(gate) * up for a group of gate and up; nullopt if no kernel does, or if separate products
// and a SwiGlu are expected to be faster.
std::optional<GemmConfig> choose_gated_config(const LinearGroup& group, const Target& target);

}  // namespace lb::gpu
