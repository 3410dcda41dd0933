// Fuses an op with the cast of its result, for the GEMMs of a prompt on wgmma.
#pragma once

#include <optional>

#include "gpu/gemm/choose.h"
#include "ops/rms_norm.h"

namespace lb::gpu {

struct CastResultLaunch {
  Launch launch;
  CastResult params;
};

// The launch that replaces the op and gemms.narrow, where `gemms` multiply the op's y. Returns nullopt if they read y
// in fp32 or in several forms, or if no kernel has the op's shape.
std::optional<CastResultLaunch> choose_cast(const RmsNorm& op, const GemmLaunches& gemms, const Target& target);
std::optional<CastResultLaunch> choose_cast(const GatedRmsNorm& op, const GemmLaunches& gemms, const Target& target);
std::optional<CastResultLaunch> choose_cast(const SwiGlu& op, const GemmLaunches& gemms, const Target& target);

}  // namespace lb::gpu
