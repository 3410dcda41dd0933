// What the kernels of products with many rows of x and their launch functions must agree on. Read by host and device.
//
// A tile is tile_outs outputs of one product for tile_rows rows of x; its inner dimension comes in chunks of as many
// values as a kernel holds at once. Units (tile, chunk) are numbered with the chunk fastest, then the tile of rows, and
// block b has the units [n_units b / n_blocks, n_units (b + 1) / n_blocks). A tile that ends up in several blocks is
// summed from their partial sums, in the order of the blocks. Blocks that warpgroups multiply in have whole tiles
// first: block b has tiles b, b + n_blocks, ... below n_whole, and then its units of the tiles that are left.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "ops/linear.h"
#include "ops/round_rows.h"
#include "quant/planes.h"

namespace lb::gpu {

inline constexpr int kGemmThreads = 256, kGemmWarps = kGemmThreads / 32;
inline constexpr int kByteValues = 128;  // in a chunk: of the products of bytes,
inline constexpr int kHalfValues = 64;   // of 16-bit numbers,
inline constexpr int kFloatValues = 32;  // of fp32 numbers
inline constexpr int kFloatRows = 32;    // in a tile of products of fp32 numbers
inline constexpr int kWideRows = 128;    // in a tile of the kernels for more rows than a speculation has

struct Gemm {
  LinearGroup group;                 // of one type
  RoundedRows x;                     // products of bytes read it,
  const void* x16;                   // [rows, x16_values(n_in)] those of 16-bit numbers; or in tiles
  float* partials;                   // [n_blocks, 2, tile_rows, tile_outs]: of a block's first tile, and of its last
  int first_tile[kMaxProducts + 1];  // tiles of outputs [first_tile[i], first_tile[i + 1]) are those of product i
  int n_row_tiles, n_chunks, n_blocks, n_stages;
  int tile_rows, tile_outs;
  int n_whole_tiles;  // tiles; 0 but for kernels of warpgroups
};

// Rows of x as 16-bit numbers, padded with zeros to whole chunks. In tiles: [tiled_values(n_in) / 64,
// padded_rows(rows), 64], the pieces of eight values of a row permuted as operand_tile.h says, so that any rows of 64
// values are one piece of memory.
struct NarrowRows {
  const float* x;  // [rows, n_in]
  void* y;         // [rows, x16_values(n_in)], or in tiles
  DType type;      // F16: what is too large becomes the largest number; BF16
  int rows, n_in;
  bool is_permuted;  // in the order in which the other operand is expanded from codes
  bool is_tiled;
};
// Weights as 16-bit numbers, of types that no kernel for many rows reads. Both lie in planes (quant/planes.h).
struct ExpandWeights {
  const void* w;  // [n_out, n_in] of from, quantised
  void* y;        // [n_out, n_in] of to: F16 or BF16
  DType from, to;
  int n_out, n_in;
};

LB_FN constexpr int x16_values(int n_in) { return (n_in + kHalfValues - 1) / kHalfValues * kHalfValues; }

LB_FN constexpr int tiled_values(int n_in) { return (n_in + 127) / 128 * 128; }
LB_FN constexpr int padded_rows(int rows) { return (rows + 7) / 8 * 8; }
inline constexpr int kTileRowBytes = 2 * kHalfValues;

// Rows in shared memory: an odd number of 16 bytes apart, so that 8 of them lie in different banks.
LB_FN constexpr int gemm_stride(int bytes) { return bytes % 32 == 0 ? bytes + 16 : bytes; }

// Of plane i, what a chunk of `values` of one row needs in shared memory: its codes. Scales go through registers.
LB_FN constexpr int gemm_code_bytes(DType type, int i, int values) {
  const quant::PlaneFormat format = quant::plane_format(type);
  const bool is_codes = i == 0 || (i == 1 && type == DType::kQ6_K);
  return is_codes ? format.part_bytes[i] * values / format.block_values : 0;
}
LB_FN constexpr int gemm_code_row(DType type, int values) {
  int bytes = 0;
  for (int i = 0; i < 2; ++i)
    bytes += gemm_code_bytes(type, i, values) ? gemm_stride(gemm_code_bytes(type, i, values)) : 0;
  return bytes;
}
// Bytes of x in a stage; tiles of rows are padded to 16.
LB_FN constexpr int gemm_pad(int tile_rows) { return (tile_rows + 15) / 16 * 16; }
LB_FN constexpr int gemm_byte_x(int tile_rows, int bits) {
  const int n_row_blocks = kByteValues / kRoundBlock;
  return gemm_pad(tile_rows) * (gemm_stride(kByteValues) * (bits / 8) + 2 * n_row_blocks * int(sizeof(float)));
}
LB_FN constexpr int gemm_half_x(int tile_rows) { return tile_rows * gemm_stride(2 * kHalfValues); }
LB_FN constexpr int gemm_float_x(int tile_rows) { return tile_rows * gemm_stride(4 * kFloatValues); }
// A warp's own shared memory: the scales of a chunk, unpacked, and sums on their way out.
inline constexpr int kGemmWarpBytes = 1024;

// Kernels of warpgroups: eight warps that multiply, and a warpgroup of which one thread brings x. As many stages, up to
// eight, as there is room for; each has two barriers.
inline constexpr int kWarpgroupThreads = 384;
inline constexpr int kWarpgroupSharedBytes = 227 * 1024, kTileAlignmentBytes = 1024;
inline constexpr int kWarpgroupWarpBytes = 1280;
LB_FN constexpr int warpgroup_values(DType type) { return quant::plane_format(type).block_values > 1 ? 128 : 64; }
LB_FN constexpr int warpgroup_stage_bytes(DType type, int tile_rows, int tile_outs) {
  const int values = warpgroup_values(type);
  return tile_rows * 2 * values + tile_outs * gemm_code_row(type, values) + 2 * int(sizeof(uint64_t));
}
LB_FN constexpr int warpgroup_stages(DType type, int tile_rows, int tile_outs) {
  const int room = kWarpgroupSharedBytes - kTileAlignmentBytes - kGemmWarps * kWarpgroupWarpBytes;
  const int n = room / warpgroup_stage_bytes(type, tile_rows, tile_outs);
  return n < 8 ? n : 8;
}
LB_FN constexpr int warpgroup_shared_bytes(DType type, int tile_rows, int tile_outs) {
  return kTileAlignmentBytes + kGemmWarps * kWarpgroupWarpBytes +
         warpgroup_stages(type, tile_rows, tile_outs) * warpgroup_stage_bytes(type, tile_rows, tile_outs);
}

}  // namespace lb::gpu
