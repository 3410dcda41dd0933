// AttentionConfig: the kernel for an attention op on a target, and how it divides queries and context. choose.h turns
// it into launches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "gpu/attention/shape.h"
#include "ops/attention.h"
#include "pack/target.h"

namespace lb::gpu {

// Co-resident blocks per SM that registers allow. Shared memory may allow fewer.
inline constexpr int kBlocksPerSm = 2;

struct AttentionConfig {
  const char* kernel;
  int queries, per_sm;   // queries per block, co-resident blocks per SM
  int ring, tile_bytes;  // as in AttentionSplits
  size_t shared_bytes;
  bool splits_first;  // grid x is the split; else x is the tile of queries and z the split
  uint32_t threads = kAttentionThreads;
  int n_tiles = 0, n_splits = 0;  // query tiles per KV head, splits of the context
};

// Example: attention_decode_f16_256_kernel: 1 x 16 queries, 66 splits, ring of 3, 128 threads, 113536 B
std::string to_string(const AttentionConfig& config);

// Chooses the config of an op that choose() accepts. `capacity`: tokens that the cache has room for.
AttentionConfig attention_config(const Attention& op, int capacity, const Target& target);

// Maximum number of splits of a context.
int max_splits(int capacity);

// Text for error messages: "[attention] [22, 24, 128] over 4 heads of f16 and f16".
std::string to_string(const Attention& op);

}  // namespace lb::gpu
