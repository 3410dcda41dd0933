// GemmConfig: the GEMM kernel for a group of one weight type on a target, its tiles, and how blocks share them.
// choose.h turns it into launches.
#pragma once

#include <cstddef>
#include <string>

#include "gpu/gemm/shape.h"
#include "pack/target.h"

namespace lb::gpu {

struct GemmConfig {
  const char* kernel;
  int chunk_values, tile_rows, tile_outs;  // size of a tile; a chunk is the part of n_in that one stage holds
  int n_stages;                            // stages of the ring in shared memory; 0: the kernel fixes them
  int threads;
  size_t shared_bytes;
  int n_blocks, n_whole_tiles;  // one block computes a whole tile; all blocks share the others
};

// The ring of a gemm.h kernel: two to four stages, as many as let a second block share the SM; failing that, as many as
// fit one block.
struct GemmStages {
  int n, blocks_per_sm;  // n 0: not even two stages fit
  size_t bytes;          // of shared memory
};
GemmStages gemm_stages(size_t stage_bytes, const Target& target);

// Example: gemm_q4_k_int16_32_kernel: tiles of 32 x 128 by 128, 0 whole, on 264 blocks of 256 threads, 4 stages, 90112
// B
std::string to_string(const GemmConfig& config);

// Chooses for a group of one type that a kernel reads as stored. Throws if no kernel does, with `what` in the message.
GemmConfig gemm_config(const LinearGroup& group, const std::string& what, const Target& target);

// Number of tiles of a group.
long tile_count(const LinearGroup& group, int tile_rows, int tile_outs);

// Bits of the rounded x that a matrix multiplies; 0: it reads fp32 x, unchanged or as 16-bit numbers.
int bits_of(const Linear& op);

// Whether x becomes NVFP4: for prompts of NVFP4 weights, on request.
bool multiplies_fp4(const Linear& op);

// Throws kUnsupported if the pack has no kernel for that.
void check_fp4(const Target& target);

// Whether a tiled GEMM kernel reads the matrix as stored.
bool has_tiles(const Linear& op, const Target& target);

// Whether a group of one type gets a wgmma kernel.
bool is_warpgroup(const LinearGroup& group, const Target& target);

}  // namespace lb::gpu
