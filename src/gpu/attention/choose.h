// Geometry of attention and of the paged cache's upkeep.
#pragma once

#include <cstddef>

#include "gpu/attention/shape.h"
#include "pack/launch.h"
#include "pack/target.h"

namespace lb::gpu {

// The attention, and where it is split over the context, the merge.
struct AttentionLaunches {
  Launch launches[2];
  int n;
  AttentionSplits params;  // of both
};

// Whether the merge of splits, where there are several, can also round o (AttentionSplits::rounded).
bool can_round(const Attention& op);

// `capacity`: tokens that the cache has room for, which *n_past + rows never passes. `scratch`: at least
// attention_scratch_bytes, 16-byte aligned.
AttentionLaunches choose(const Attention& op, int capacity, void* scratch, const Target& target);
// For every append of at most max_rows rows.
size_t attention_scratch_bytes(int max_rows, int n_heads, int head_dim, int capacity, const Target& target);

// What has to move, K and V once, and what a row and head multiply over the slots that a chain's row sees.
size_t bytes_of(const Attention& op, int n_past);
double flops_of(const Attention& op, int n_past);

Launch choose(const KvAppend& op, const Target& target);
Launch choose(const KvMove& op, const Target& target);
Launch choose(const AttentionPrepare& op, const Target& target);

}  // namespace lb::gpu
