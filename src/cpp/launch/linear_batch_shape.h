// What the kernels of products with many rows of x and their launch functions must agree on. Read by host and device.
//
// A tile is tile_outs outputs of one product for tile_rows rows of x; its inner dimension comes in chunks of as many
// values as a kernel holds at once. Units (tile, chunk) are numbered with the chunk fastest, then the tile of rows, and
// block b has the units [n_units b / n_blocks, n_units (b + 1) / n_blocks). A tile that ends up in several blocks is
// summed from their partial sums, in the order of the blocks.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "ops/linear.h"
#include "ops/round_rows.h"
#include "quant/planes.h"

namespace lb::gpu {

inline constexpr int kBatchWarps = 8;
inline constexpr int kBatchThreads = 32 * kBatchWarps;
inline constexpr int kByteValues = 128;  // in a chunk: of the products of bytes,
inline constexpr int kHalfValues = 64;   // of 16-bit numbers,
inline constexpr int kFloatValues = 32;  // of fp32 numbers
inline constexpr int kFloatRows = 32;    // in a tile of products of fp32 numbers
inline constexpr int kWideRows = 128;    // in a tile of the kernels for more rows than a speculation has

struct LinearBatch {
  LinearGroup group;                 // of one type
  RoundedRows x;                     // products of bytes read it,
  const void* x16;                   // [rows, x16_values(n_in)] those of 16-bit numbers
  float* partials;                   // [n_blocks, 2, tile_rows, tile_outs]: of a block's first tile, and of its last
  int first_tile[kMaxProducts + 1];  // tiles of outputs [first_tile[i], first_tile[i + 1]) are those of product i
  int n_row_tiles, n_chunks, n_blocks, n_stages;
  int tile_rows, tile_outs;
};

// Rows of x as 16-bit numbers, padded with zeros to whole chunks.
struct NarrowRows {
  const float* x;  // [rows, n_in]
  void* y;         // [rows, x16_values(n_in)]
  DType type;      // F16: what is too large becomes the largest number; BF16
  int rows, n_in;
  bool meets_codes;  // in the order in which the other operand is expanded from codes
};
LB_FN constexpr int x16_values(int n_in) { return (n_in + kHalfValues - 1) / kHalfValues * kHalfValues; }

// Rows in shared memory: an odd number of 16 bytes apart, so that 8 of them lie in different banks.
LB_FN constexpr int batch_stride(int bytes) { return bytes % 32 == 0 ? bytes + 16 : bytes; }

// Of plane i, what a chunk of `values` of one row needs in shared memory: its codes. Scales go through registers.
LB_FN constexpr int batch_code_bytes(DType type, int i, int values) {
  const quant::PlaneFormat format = quant::plane_format(type);
  const bool is_codes = i == 0 || (i == 1 && type == DType::kQ6_K);
  return is_codes ? format.part_bytes[i] * values / format.block_values : 0;
}
LB_FN constexpr int batch_code_row(DType type, int values) {
  int bytes = 0;
  for (int i = 0; i < 2; ++i)
    bytes += batch_code_bytes(type, i, values) ? batch_stride(batch_code_bytes(type, i, values)) : 0;
  return bytes;
}
// Bytes of x in a stage; tiles of rows are padded to 16.
LB_FN constexpr int batch_pad(int tile_rows) { return (tile_rows + 15) / 16 * 16; }
LB_FN constexpr int batch_byte_x(int tile_rows, int bits) {
  const int n_runs = kByteValues / kRoundRun;
  return batch_pad(tile_rows) * (batch_stride(kByteValues) * (bits / 8) + 2 * n_runs * int(sizeof(float)));
}
LB_FN constexpr int batch_half_x(int tile_rows) { return tile_rows * batch_stride(2 * kHalfValues); }
LB_FN constexpr int batch_float_x(int tile_rows) { return tile_rows * batch_stride(4 * kFloatValues); }
// A warp's own shared memory: the scales of a chunk, unpacked, and sums on their way out.
inline constexpr int kBatchWarpBytes = 1024;

}  // namespace lb::gpu
