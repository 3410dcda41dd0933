// Choice of kernel, grid and parameters for attention and the paged KV cache.
#pragma once

#include <array>
#include <cstddef>
#include <span>

#include "gpu/attention/shape.h"
#include "pack/launch.h"
#include "pack/target.h"

namespace lb::gpu {

// The attention, then the merge if the result has partials. Both take the same params.
struct AttentionLaunches {
  Launch launches[2];
  int n;
  AttentionSplits params;
};

// Whether the merge, if there is one, can also write o rounded (AttentionSplits::rounded).
bool can_round(const Attention& op);

// `capacity`: tokens that the cache has room for; *n_past + rows must never exceed it. `scratch`:
// attention_scratch_bytes(), 16-byte aligned.
AttentionLaunches choose(const Attention& op, int capacity, void* scratch, const Target& target);
// Launches of a tree's rows by row (Attention::by_row), at most kRowsOfLaunch of them. `scratch`: for each row,
// attention_row_scratch_bytes().
inline constexpr int kRowsOfLaunch = 16;
bool has_attention_by_row(const Target& target);
AttentionLaunches choose_by_row(const Attention& op, int capacity, void* scratch, const Target& target);
// Scratch bytes that suffice for every append of at most max_rows rows.
size_t attention_scratch_bytes(int max_rows, int n_heads, int head_dim, int capacity, const Target& target);

// Scratch bytes that suffice for an append of one row.
size_t attention_row_scratch_bytes(int n_heads, int n_kv_heads, int head_dim, int capacity, const Target& target);

// Bytes that must move (K and V once), and flops of a chain under its causal mask.
size_t bytes_of(const Attention& op, int n_past);
double flops_of(const Attention& op, int n_past);

// key_sums_kernel, then key_scores_kernel.
std::array<Launch, 2> choose(const KeyScores& op, const Target& target);
Launch choose(const KeyMeans& op, const Target& target);
Launch choose(const SelectBlocks& op, const Target& target);

// Whether a target has kernels for block-sparse attention over f16 pages: for any heads, or for these heads.
bool has_sparse_attention(const Target& target);
bool has_sparse_attention(int n_heads, int n_kv_heads, int head_dim, const Target& target);

// Throws if no kernel supports the cache's head_dim and types.
void check_cache(const KvLayer& cache, const std::string& what);

Launch choose(const KvAppend& op, const Target& target);

struct MoveLaunch {
  Launch launch;
  KvMoves params;
  int n;  // layers that this launch moves
};

// Launch for the first layers of `moves`, up to the maximum per launch, that share a shape and a page table. All must
// have the same path.
MoveLaunch choose(std::span<const KvMove> moves, const Target& target);

Launch choose(const AttentionPrepare& op, const Target& target);

}  // namespace lb::gpu
