// Choice of kernel, grid and parameters for Gated DeltaNet, its convolution and its gates.
#pragma once

#include <cstddef>
#include <optional>

#include "gpu/delta_net/shape.h"
#include "ops/delta_net.h"

#include "pack/launch.h"
#include "pack/target.h"

namespace lb::gpu {

Launch choose(const CausalConv& op, const Target& target);
Launch choose(const DeltaPrepare& op, const Target& target);
// Whether one kernel computes DeltaInputs: for one row, or for more rows (by_row: any) of the usual shape (dk = 128,
// 4 taps).
// Otherwise the caller runs conv and prepare.
bool is_fused(const DeltaInputs& op);
Launch choose(const DeltaInputs& op, const Target& target);

// Launches in order, all with the same params:
//   by_row             rows
//   no row             fold
//   1 row              step
//   2 to 32 rows       small, if the pack has it and the shape fits
//   2 to 64 rows       pairs, then the chunk
//   more               fold; the pairs of all chunks; all chunks in one launch. The last two on matrix units if
//   is_chain()
struct DeltaLaunches {
  Launch launches[3];
  int n;
  DeltaWork params;
};
// `work`: gated_delta_scratch_bytes(). With up to 64 rows, the first kernel reads S and the accepted rows before its
// own wait_for_previous(), while the preceding launch still runs. The preceding launch must be delta_prepare or
// delta_inputs, which let dependents start only after their own wait, or a launch that lets no dependents start early.
DeltaLaunches choose(const GatedDelta& op, float* work, const Target& target);
// The recurrence and its gated norm in one launch of gated_delta_small, except the division by each head's root mean
// square (DeltaWork::norm). Returns nullopt if no kernel supports this.
std::optional<DeltaLaunches> choose(const GatedDelta& op, const GatedRmsNorm& norm, const Target& target);
// Both depend only on the shape.
bool is_chain(const GatedDelta& op, const Target& target);
size_t gated_delta_scratch_bytes(const GatedDelta& op, const Target& target);

}  // namespace lb::gpu
