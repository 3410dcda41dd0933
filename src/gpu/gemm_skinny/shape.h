// Parameters, geometry and shared memory of the skinny GEMM kernels: the contract of host and device.
//
// The outputs of all matrices of a group are numbered consecutively; each matrix starts at a whole tile of 16 outputs.
// (With Epilogue::kGated, two tiles of gate alternate with two tiles of up.) Tiles are divided into ranges, and the
// inner dimension into slices of k-blocks of 256 values (split-K). Thread block (x: slice, y: range) multiplies one
// slice of one range:
//
//                   k-blocks of 256 values
//                 | slice 0   | slice 1   | ...
//     range 0     | block 0,0 | block 1,0 |      a unit is one tile and one k-block; units are numbered with the
//     range 1     | block 0,1 | block 1,1 |      k-block fastest and split over the warps in order
//
// A partial is the sum of a warp's units of one tile; it has index tile + warp in the partials of its thread block.
// Afterwards each thread block of a range adds the partials of its share of the range's tiles (epilogue.h).
//
// In a group of two weight types, the matrices of the second type follow the matrices of the first. No range mixes
// types.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "ops/linear.h"
#include "ops/round_rows.h"
#include "quant/planes.h"

namespace lb::gpu {

inline constexpr int kSkinnyThreads = 384;  // up to 168 registers per thread, one block per SM
inline constexpr int kSkinnyWarps = kSkinnyThreads / 32;
inline constexpr int kSkinnyOuts = 16, kSkinnyValues = 256;  // outputs per tile, values per k-block
inline constexpr int kSkinnyRanges = 1024;                   // max ranges per launch

// Shared memory of one row of x for one k-block: 256 16-bit values, then 64 bytes.
//
//   byte 0     256 f16 values, code * scale in units of the row's power of two, in the order of the products
//   byte 512   32 bytes: sums of the eight blocks of 32 values, as two f16 each (high, rest)
//   byte 544   32 bytes: the power of two (fp32), which brings the largest value to 127..254
//
// The two 32-byte parts swap in every second pair of rows, and the power moves by 8 bytes in every second group of four
// rows. Rows that a warp reads together therefore fall in different banks.
inline constexpr int kSkinnyRowBytes = kSkinnyValues * 2 + 64;
LB_FN constexpr int skinny_sums_offset(int row) { return kSkinnyValues * 2 + row / 2 % 2 * 32; }
// Offset of the 32-byte part that is not the sums. Until the values are converted it holds the scales of the eight
// blocks.
LB_FN constexpr int skinny_side_offset(int row) { return kSkinnyValues * 2 + (1 - row / 2 % 2) * 32; }
LB_FN constexpr int skinny_power_offset(int row) { return skinny_side_offset(row) + row / 4 % 2 * 8; }

// F16 and BF16 weights multiply x of their own type. Shared memory then holds x unchanged and no sums, and the power
// field holds the factor of the row's norm. All other types multiply x rounded to 8 bits.
LB_FN constexpr bool skinny_is_plain(DType type) { return type == DType::kF16 || type == DType::kBF16; }

// Whether x still lacks its norm's factor 1 / rms: kNone, no factor; kRow, one per row; kHead, one per head of a row.
enum class SkinnyNorm : int { kNone, kRow, kHead };
inline constexpr int kSkinnyHead = 128;  // values per head

// The epilogue turns the sums into:
//   kSums    y
//   kNormed  one matrix: y; next_x = y * norm_w, rounded, without the norm's factor; next_x.sum = the sum of squares of
//            each 32 values of y, from which the reader computes the factor
//   kGated   two matrices: next_x = silu(y of the first) * (y of the second), rounded; y is not written
enum class Epilogue : int { kSums, kNormed, kGated };

// Tiles that the epilogue takes together: 32 values of next_x need two tiles, or four when gated.
LB_FN constexpr int skinny_grain(Epilogue epilogue) {
  return epilogue == Epilogue::kSums ? 1 : epilogue == Epilogue::kNormed ? 2 : 4;
}

// Splits n items evenly into consecutive parts: `each` items per part, one more in the first n_larger parts. The host
// computes the split, because every thread block needs its part before it can load weights.
struct SkinnySplit {
  int each, n_larger;
};
LB_FN constexpr SkinnySplit skinny_split(int n, int n_parts) { return {n / n_parts, n % n_parts}; }
LB_FN constexpr int first_of(const SkinnySplit& parts, int i) {
  return parts.each * i + (i < parts.n_larger ? i : parts.n_larger);
}
LB_FN constexpr int size_of(const SkinnySplit& parts, int i) { return parts.each + (i < parts.n_larger ? 1 : 0); }
LB_FN constexpr int part_of(const SkinnySplit& parts, int item) {
  const int of_larger = parts.n_larger * (parts.each + 1);
  return item < of_larger ? item / (parts.each + 1) : parts.n_larger + (item - of_larger) / parts.each;
}

struct GemmSkinny {
  LinearGroup group;  // has one weight type, or two: then the first type's matrices come first
  RoundedRows x;      // 8-bit codes and scales; for plain weights `high` is x itself, [rows, n_in] in the weights' type
  SkinnyNorm norm;
  const float* squares;  // [rows, n_in / 32] sums of squares of x before its norm; null without a norm
  float eps, per_value;  // eps of that norm; 1 / number of values that share a factor
  Epilogue epilogue;
  const float* norm_w;  // [n_out]; kNormed only
  RoundedRows next_x;   // [rows, n_out] in the form of x; kNormed, kGated
  float* partials;      // [ranges, slices, skinny_partials(max_range_tiles), tile_rows, 16]
  uint32_t* arrived;    // [ranges] arrival counters, zero before the first launch; only skinny GEMMs write them
  int first_tile[kMaxProducts];               // first tile of each matrix; unused by kGated
  SkinnySplit slices;                         // k-blocks per slice
  SkinnySplit ranges;                         // grains per range, first type
  SkinnySplit second_ranges;                  // grains per range, second type
  int second_range_begin, second_tile_begin;  // first range and first tile of the second type
  int n_slices;
  int max_range_tiles, max_sum_tiles;  // max tiles of a range; max tiles whose partials one thread block adds
  int tile_partials, slice_partials;   // table entries per tile; table entries per slice of a tile
  bool is_cluster;                     // the thread blocks of a range form a cluster
};

// Partials of a thread block with n tiles. A tile shared by two warps has two partials.
LB_FN constexpr int skinny_partials(int n_tiles) { return n_tiles + kSkinnyWarps - 1; }

// Dynamic shared memory: the table of partials, then x of the slice. The epilogue reuses the memory of x for the sums
// from which it computes next_x.
//
// The table is [max_sum_tiles, tile_partials] indices of partials, -1 for none. tile_partials has room for the maximum
// number of partials per tile in every slice. It is rounded up to the batch that a warp loads together.
inline constexpr int kSkinnyPartialBatch = 8;
LB_FN constexpr int skinny_table_bytes(int max_sum_tiles, int tile_partials) {
  return (max_sum_tiles * tile_partials * int(sizeof(int32_t)) + 127) / 128 * 128;
}
LB_FN constexpr int skinny_x_bytes(int tile_rows, int n_k_blocks) { return tile_rows * n_k_blocks * kSkinnyRowBytes; }
inline constexpr int kSkinnySumBytes = 32 * 16;  // bytes of the sums of one tile and eight rows
LB_FN constexpr int skinny_sums_bytes(int tile_rows, int n_tiles) { return tile_rows / 8 * n_tiles * kSkinnySumBytes; }
// Thread blocks per cluster. Larger clusters would leave SMs idle, because the SMs of a GPC are not a multiple of them.
inline constexpr int kSkinnyCluster = 2;

// How the units of a thread block are split over its warps.
LB_FN constexpr SkinnySplit skinny_units(int n_tiles, int n_k_blocks) {
  return skinny_split(n_tiles * n_k_blocks, kSkinnyWarps);
}
// Upper bound on the warps that share one tile.
LB_FN constexpr int skinny_max_partials(int n_tiles, int n_k_blocks) {
  const int each = skinny_units(n_tiles, n_k_blocks).each;
  return each == 0 ? n_k_blocks : (n_k_blocks + each - 2) / each + 1;
}

}  // namespace lb::gpu
