// Grids of the ops on independent rows or values. Each choose() is pure. It throws, naming the op, if the pack has no
// kernel for the op or the target cannot run it.
#pragma once

#include "ops/copy_rows.h"
#include "ops/embed.h"
#include "ops/linear.h"
#include "ops/read_memory.h"
#include "ops/rms_norm.h"
#include "ops/rope.h"
#include "ops/vision.h"
#include "pack/launch.h"
#include "pack/target.h"

namespace lb::gpu {

Launch choose(const RmsNorm& op, const Target& target);
Launch choose(const GatedRmsNorm& op, const Target& target);
Launch choose(const Rope& op, const Target& target);
Launch choose(const RopeTable& op, const Target& target);
Launch choose(const SwiGlu& op, const Target& target);
Launch choose(const GeGlu& op, const Target& target);
Launch choose(const SoftCap& op, const Target& target);
Launch choose(const AddNorm& op, const Target& target);
Launch choose(const AddBias& op, const Target& target);

// Whether the op's kernel can also round y: dim is a multiple of 32 and all pointers are 16-byte aligned.
bool can_round(const RmsNorm& op);
bool can_round(const GatedRmsNorm& op);
bool can_round(const SwiGlu& op);
bool can_round(const GeGlu& op);

Launch choose(const CopyRows& op, const Target& target);
Launch choose(const Embed& op, const Target& target);
Launch choose(const ReadMemory& op, const Target& target);

// Vision towers.
Launch choose(const ReadPatches& op, const Target& target);
Launch choose(const AddPositions& op, const Target& target);
Launch choose(const AddAxisPositions& op, const Target& target);
Launch choose(const PoolPatches& op, const Target& target);
Launch choose(const Clamp& op, const Target& target);
Launch choose(const LayerNorm& op, const Target& target);
Launch choose(const BiasGelu& op, const Target& target);
Launch choose(const SplitHeads& op, const Target& target);
Launch choose(const MergeHeads& op, const Target& target);

// The grid of read_kernel, which is also the length of ReadMemory::sums.
int read_blocks(const Target& target);

}  // namespace lb::gpu
