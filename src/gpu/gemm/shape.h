// Parameters, tiles and shared memory of the GEMM kernels: the contract of host and device.
//
// A tile is tile_outs outputs of one matrix for tile_rows rows of x. Its inner dimension is divided into chunks; a
// chunk is the values that one stage of shared memory holds. A unit is one chunk of one tile. Units are numbered with
// the chunk fastest, then the tile of rows, then the tile of outputs.
//
// Stream-K: block b computes the units [n_units b / n_blocks, n_units (b + 1) / n_blocks). If several blocks share a
// tile, its result is the sum of their partial sums, in the order of the blocks (gemm_sum.cpp). The wgmma kernels start
// with whole tiles: block b first computes the tiles b, b + n_blocks, ... below n_whole_tiles, then its units of the
// remaining tiles.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "ops/linear.h"
#include "ops/round_rows.h"
#include "quant/planes.h"

namespace lb::gpu {

inline constexpr int kGemmThreads = 256, kGemmWarps = kGemmThreads / 32;
// Values per chunk, by operand type of the matrix instruction: bytes, 16-bit numbers, fp32.
inline constexpr int kByteValues = 128, kHalfValues = 64, kFloatValues = 32;
inline constexpr int kFloatRows = 32;                // rows per tile of the fp32 kernel
inline constexpr int kWideRows = 128;                // rows per tile of the gemm_wide kernels, for prompts
inline constexpr int kFp8Rows = 64, kFp8Outs = 256;  // tile of fp8 without wgmma: two stages fit 99 KiB
inline constexpr int kFp4Outs = 256;                 // tile of fp4, with kWideRows

struct Gemm {
  LinearGroup group;  // of one weight type
  RoundedRows x;      // [rows, n_in]; read by kernels that multiply bytes
  const void* x16;    // output of cast_rows; read by kernels that multiply 16-bit, fp8 or fp4 numbers
  float* partials;    // [n_blocks, 2, tile_rows, tile_outs]: partial sums of a block's first and last tile
  int first_tile[kMaxProducts + 1];  // matrix i has the output tiles [first_tile[i], first_tile[i + 1])
  int n_row_tiles, n_chunks, n_blocks, n_stages;
  int tile_rows, tile_outs;
  int n_whole_tiles;  // 0 except for the wgmma kernels
};

// Converts x to 16-bit numbers, padded with zeros to whole chunks. The wgmma kernels need the tiled layout
// [tiled_values(n_in) / 64, padded_rows(rows), 64], with the 16-byte pieces of a row swizzled as in operand_tile.h. 64
// values of any consecutive rows are then contiguous memory for one bulk copy.
//
// Quantised weights of the wgmma kernels read F16 with a scale per row, a power of two that gives the row's largest
// value the exponent 14. Values have the order of pairs of codes (pair_index).
//
// F8_E4M3 is always tiled, with 128 values in place of 64, and has a scale per row and 128 values:
// scale = max|x| / 448, code = round(x / scale) to the nearest e4m3, half to even.
//
// NVFP4 is tiled without the swizzle: [tiled_values(n_in) / 128, padded_rows(rows), 128 codes], in the order of
// fp4_product.h. It has an e4m3 scale per 16 values, round(max|x| / 6 / f), and a factor f per row, max|x| / (6 * 448);
// code = round(x / (scale * f)) to the nearest e2m1, half to even.
struct CastRows {
  const float* x;  // [rows, n_in]
  void* y;     // [rows, x16_values(n_in)], or tiled. Scales follow: of F8_E4M3 [n_in / 128, padded_rows(rows)], of F16
               // with scales [rows], of NVFP4 [tiled_values(n_in) / 128, padded_rows(rows), 8] and [rows]
  DType type;  // BF16, F16 with out-of-range values clamped, F8_E4M3 or NVFP4
  int rows, n_in;
  bool is_permuted;  // in the order that expanding weights from codes produces
  bool is_tiled;
};
// CastRows of an op's result, which is not stored in fp32 (cast_results_sm90.cpp). cast.x has the op's x, o or gate.
struct CastResult {
  CastRows cast;
  const float* factor;  // GatedRmsNorm: z; SwiGlu: up
  const float* w;       // RmsNorm: [n_in]; GatedRmsNorm: [kCastHead]
  long row_stride;      // values between rows of cast.x and factor
  float eps;
};
inline constexpr int kCastHead = 128;                      // values of a GatedRmsNorm's head
inline constexpr int kCastValues = 16;                     // of a thread and pass
inline constexpr int kCastThreads = 896, kCastPasses = 2;  // at most

// Expands weights to 16-bit numbers, for the types that no GEMM reads. Both matrices are in planes (quant/planes.h).
struct ExpandWeights {
  const void* w;  // [n_out, n_in] of type `from`, quantised
  void* y;        // [n_out, n_in] of type `to`, F16 or BF16
  DType from, to;
  int n_out, n_in;
};

LB_FN constexpr int x16_values(int n_in) { return (n_in + kHalfValues - 1) / kHalfValues * kHalfValues; }
LB_FN constexpr int tiled_values(int n_in) { return (n_in + 127) / 128 * 128; }
LB_FN constexpr int padded_rows(int rows) { return (rows + 7) / 8 * 8; }
inline constexpr int kTileRowBytes = 2 * kHalfValues;
// fp8: values per scale, the largest e4m3 number, and the smallest max|x| that gets its own scale.
inline constexpr int kFp8Values = 128;
inline constexpr float kMaxFp8 = 448, kLeastFp8Block = 1e-30f;
// fp4: values per chunk, and the largest e2m1 number.
inline constexpr int kFp4Values = 128;
inline constexpr float kMaxFp4 = 6;
LB_FN constexpr int pair_index(int k) { return k / 4 * 2 + k % 2 * 8 + k % 4 / 2; }
LB_FN constexpr size_t f16_x_scales_at(int rows, int n_in) { return size_t(padded_rows(rows)) * tiled_values(n_in); }
LB_FN constexpr size_t f16_x_bytes(int rows, int n_in) {
  return f16_x_scales_at(rows, n_in) * sizeof(uint16_t) + rows * sizeof(float);
}
LB_FN constexpr size_t fp8_x_scales_at(int rows, int n_in) { return size_t(padded_rows(rows)) * tiled_values(n_in); }
LB_FN constexpr size_t fp8_x_bytes(int rows, int n_in) {
  return fp8_x_scales_at(rows, n_in) / kFp8Values * (kFp8Values + sizeof(float));
}

LB_FN constexpr size_t fp4_x_scales_at(int rows, int n_in) {
  return size_t(padded_rows(rows)) * tiled_values(n_in) / 2;
}
LB_FN constexpr size_t fp4_x_row_scales_at(int rows, int n_in) {
  return fp4_x_scales_at(rows, n_in) + size_t(padded_rows(rows)) * tiled_values(n_in) / 16;
}
LB_FN constexpr size_t fp4_x_bytes(int rows, int n_in) {
  return fp4_x_row_scales_at(rows, n_in) + rows * sizeof(float);
}

// Row stride in shared memory, in bytes: an odd multiple of 16, so that 8 rows fall in different banks.
LB_FN constexpr int gemm_stride(int bytes) { return bytes % 32 == 0 ? bytes + 16 : bytes; }

// Bytes of plane i in shared memory for `values` values of one row. Only codes pass through shared memory; scales go
// through registers.
LB_FN constexpr int gemm_code_bytes(DType type, int i, int values) {
  const quant::PlaneFormat format = quant::plane_format(type);
  const bool is_codes =
      i == 0 ||
      (i == 1 && (type == DType::kQ5_0 || type == DType::kQ5_1 || type == DType::kQ5_K || type == DType::kQ6_K));
  return is_codes ? format.part_bytes[i] * values / format.block_values : 0;
}
LB_FN constexpr int gemm_code_row(DType type, int values) {
  int bytes = 0;
  for (int i = 0; i < 2; ++i)
    bytes += gemm_code_bytes(type, i, values) ? gemm_stride(gemm_code_bytes(type, i, values)) : 0;
  return bytes;
}
// Bytes of x in a stage, for kernels that multiply bytes, 16-bit numbers and fp32. Byte kernels pad the rows to a
// multiple of 16.
LB_FN constexpr int gemm_pad(int tile_rows) { return (tile_rows + 15) / 16 * 16; }
LB_FN constexpr int gemm_byte_x(int tile_rows, int bits) {
  const int n_row_blocks = kByteValues / kRoundBlock;
  return gemm_pad(tile_rows) * (gemm_stride(kByteValues) * (bits / 8) + 2 * n_row_blocks * int(sizeof(float)));
}
LB_FN constexpr int gemm_half_x(int tile_rows) { return tile_rows * gemm_stride(2 * kHalfValues); }
// fp8: the values of a row, and its scale. fp4: the values and scales of a row.
LB_FN constexpr int gemm_fp8_x(int tile_rows) { return tile_rows * (gemm_stride(kFp8Values) + int(sizeof(float))); }
LB_FN constexpr int gemm_fp4_x(int tile_rows) { return tile_rows * (gemm_stride(kFp4Values / 2) + kFp4Values / 16); }
LB_FN constexpr int gemm_float_x(int tile_rows) { return tile_rows * gemm_stride(4 * kFloatValues); }
// Shared memory private to a warp: the decoded scales of a chunk, and the sums before they are stored.
inline constexpr int kGemmWarpBytes = 1024;

// The wgmma kernels: two consumer warpgroups and one producer warpgroup. The ring has up to eight stages, as many as
// fit, each with two barriers.
inline constexpr int kWarpgroupThreads = 384;
inline constexpr int kWarpgroupSharedBytes = 227 * 1024, kTileAlignmentBytes = 1024;
inline constexpr int kWarpgroupWarpBytes = 1280;
// A gated tile computes silu(w0 x) * (w1 x) for kGatedOuts outputs of both matrices of a group.
inline constexpr int kGatedOuts = 128, kGatedRows = 128;
LB_FN constexpr int warpgroup_values(DType type) { return quant::plane_format(type).block_values > 1 ? 128 : 64; }
// Bytes of a row of x in a stage: the values, and the scale of fp8.
LB_FN constexpr int warpgroup_x_row(DType type) {
  return type == DType::kF8_E4M3 ? kTileRowBytes : 2 * warpgroup_values(type);
}
LB_FN constexpr int warpgroup_scale_row(DType type) { return type == DType::kF8_E4M3 ? int(sizeof(float)) : 0; }
LB_FN constexpr int warpgroup_stage_bytes(DType type, int tile_rows, int tile_outs) {
  return tile_rows * (warpgroup_x_row(type) + warpgroup_scale_row(type)) +
         tile_outs * gemm_code_row(type, warpgroup_values(type)) + 2 * int(sizeof(uint64_t));
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
