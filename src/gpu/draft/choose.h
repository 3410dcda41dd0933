// Grids of the drafting ops. Pure functions; they throw, naming the op, if the pack has no kernel for it.
#pragma once

#include <cstddef>

#include "gpu/draft/shape.h"
#include "ops/block_conv.h"
#include "ops/grow_tree.h"
#include "ops/previous_row.h"
#include "pack/launch.h"
#include "pack/target.h"

namespace lb::gpu {

Launch choose(const PreviousRow& op, const Target& target);
Launch choose(const BlockConv& op, const Target& target);
Launch choose(const GrowTree& op, const Target& target);

struct SelectLaunches {
  Launch launches[2];
  ScoredCandidates params;  // of both launches
};

// `scratch`: select_scratch_bytes(op.rows, op.k)
SelectLaunches choose(const SelectCandidates& op, float* scratch, const Target& target);
constexpr size_t select_scratch_bytes(int rows, int k) { return size_t(rows) * k * k * sizeof(float); }

}  // namespace lb::gpu
