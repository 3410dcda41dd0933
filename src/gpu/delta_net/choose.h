// Geometry of the recurrent mixer's ops and of the rope table.
#pragma once

#include <cstddef>
#include <optional>

#include "gpu/delta_net/shape.h"
#include "ops/delta_net.h"
#include "ops/rope.h"
#include "pack/launch.h"
#include "pack/target.h"

namespace lb::gpu {

Launch choose(const RopeTable& op, const Target& target);
Launch choose(const CausalConv& op, const Target& target);
Launch choose(const DeltaPrepare& op, const Target& target);
// One row alone, and more of the usual shape: convolution and preparation in one launch.
bool is_fused(const DeltaInputs& op);
Launch choose(const DeltaInputs& op, const Target& target);

// One after another, all with the same params. One row: a step. No row: a fold. 2 to 64: pairs, then the chunk; up to
// 32 one launch where there is a kernel for them. More: a fold, the pairs of all chunks, then the chunks one after
// another in one launch; these on matrix units where is_chain().
struct DeltaLaunches {
  Launch launches[3];
  int n;
  DeltaWork params;
};
// `work` has gated_delta_scratch_bytes. A step, and chunks of up to 64 rows, read S and the accepted rows before the
// kernel in front of them has ended: that must be delta_prepare or delta_inputs, or one that starts nothing early.
DeltaLaunches choose(const GatedDelta& op, float* work, const Target& target);
// One launch, none where there is no kernel for it: of the norm's y, rounded, all but what the heads of a row are
// divided by, and in rounded.sum the sums of squares of o.
std::optional<DeltaLaunches> choose(const GatedDelta& op, const GatedRmsNorm& norm, const Target& target);
// Depend on the shape alone.
bool is_chain(const GatedDelta& op, const Target& target);
size_t gated_delta_scratch_bytes(const GatedDelta& op, const Target& target);

}  // namespace lb::gpu
