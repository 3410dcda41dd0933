// What the kernels of products with few rows of x (src/gpu/gemm_skinny/gemm_skinny.h) and their launch functions must
// agree on. Read by host and device.
//
// The outputs of all products of a group are numbered one after another, each product's from the next whole tile of 16
// on (Epilogue::kGated: two tiles of either product in turn), and cut into ranges of tiles, the inner dimension into
// slices of blocks of 256 values. Thread block (slice, range) of the grid has one of each; there it has units of a tile
// and 256 values, numbered with the values fastest, and each warp its part of them. What a warp has of a tile is a
// piece; it lies in the place of its thread block, at tile + warp.
//
// A group may have products of two types, those of the second behind the others, which then have ranges of their own.
//
// What is shared out is so by SkinnyParts: nobody reads weights before it has found its own, and divisions would take
// longer than the rest of that.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "ops/linear.h"
#include "ops/round_rows.h"
#include "quant/planes.h"

namespace lb::gpu {

inline constexpr int kSkinnyThreads = 384;  // of 168 registers each
inline constexpr int kSkinnyWarps = kSkinnyThreads / 32;
inline constexpr int kSkinnyOuts = 16, kSkinnyValues = 256;  // of a unit
inline constexpr int kSkinnyRanges = 1024;                // at most

// x of a slice in shared memory: for each 256 values, for each row of a tile, the values as 16-bit numbers, in units of
// a power of two that brings the largest to 127 to 254, in the order of the products, the sums of its runs as two
// 16-bit numbers each, and the power. What follows each other starts in different halves of the banks.
inline constexpr int kSkinnyRowBytes = kSkinnyValues * 2 + 64;
// Where a row's sums are; in pairs of rows at one place, so that four rows lie in different banks.
LB_FN constexpr int skinny_sums_offset(int row) { return kSkinnyValues * 2 + row / 2 % 2 * 32; }
// The 32 bytes beside them, and where its power is there; so that of eight rows every second lies in another bank.
LB_FN constexpr int skinny_side_offset(int row) { return kSkinnyValues * 2 + (1 - row / 2 % 2) * 32; }
LB_FN constexpr int skinny_power_offset(int row) { return skinny_side_offset(row) + row / 4 % 2 * 8; }

// 16-bit weights, which meet x as numbers of their own type: then the values in shared memory are x as it is, there are
// no sums of runs, and the power is what the row's norm multiplies by. All others meet x rounded to 8 bits.
LB_FN constexpr bool skinny_is_plain(DType type) { return type == DType::kF16 || type == DType::kBF16; }

// x that is to be normed yet: what of it shares a factor.
enum class SkinnyNorm : int { kNone, kRow, kHead };
inline constexpr int kSkinnyHead = 128;  // values of a head

// What becomes of the sums:
//   kSums    y
//   kNormed  y, of one product, and y * norm_w rounded, with sums of squares of y: who reads these finds what the norm
//            divides by
//   kGated   silu(products[0]) * products[1], rounded; no y
enum class Epilogue : int { kSums, kNormed, kGated };

// Tiles that are made together: a run of 32 values has two.
LB_FN constexpr int skinny_grain(Epilogue epilogue) {
  return epilogue == Epilogue::kSums ? 1 : epilogue == Epilogue::kNormed ? 2 : 4;
}

// Things shared out: so many each, and one more to the first parts.
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
  LinearGroup group;  // of one type, or of two, one behind the other
  RoundedRows x;      // codes and scales; of plain weights high is [rows, n_in] numbers of their type
  SkinnyNorm norm;
  const float* squares;  // [rows, n_in / 32] of x before its norm; null without one
  float eps, per_value;  // of that norm; 1 / values that share a factor
  Epilogue epilogue;
  const float* norm_w;            // kNormed: [n_out]
  RoundedRows next_x;              // kNormed, kGated: [rows, n_out], as x is; for kNormed sum has the sums of squares
  float* partials;                  // [ranges, slices, skinny_pieces(range_tiles), tile_rows, 16]
  uint32_t* arrived;              // [ranges], zero at first, and nobody else's
  int first_tile[kMaxProducts];   // of each product, where they do not take turns
  SkinnySplit slices;                // blocks of 256 values
  SkinnySplit ranges;                // tiles, as many as are made together at a time; of the first type
  SkinnySplit second_ranges;         // of the second
  int second_range_begin, second_tile_begin;  // where it begins
  int n_slices;
  int max_range_tiles, max_sum_tiles;   // that a range has at most, and that a thread block adds up
  int tile_partials, slice_partials;  // places in the table of a tile, and of those for a slice
  bool is_cluster;                // the blocks of a range are one
};

LB_FN constexpr int skinny_partials(int max_range_tiles) { return max_range_tiles + kSkinnyWarps - 1; }

LB_FN constexpr int skinny_x_bytes(int tile_rows, int n_k_blocks) { return tile_rows * n_k_blocks * kSkinnyRowBytes; }

// Shared memory: the table of the pieces that a thread block adds up, then x, and where that was, sums of tiles of
// which something is made. The table, [share_tiles, tile_pieces], has for each slice as many places as a tile can have
// pieces there, and a multiple of what is read at once.
inline constexpr int kSkinnyPartialBatch = 8;
LB_FN constexpr int skinny_table_bytes(int max_sum_tiles, int tile_partials) {
  return (max_sum_tiles * tile_partials * int(sizeof(int32_t)) + 127) / 128 * 128;
}
inline constexpr int kSkinnySumBytes = 32 * 16;  // of a tile and eight rows
LB_FN constexpr int skinny_sums_bytes(int tile_rows, int n_tiles) { return tile_rows / 8 * n_tiles * kSkinnySumBytes; }
inline constexpr int kSkinnyCluster = 2;  // blocks: more do not fill all multiprocessors, whose groups vary in size

// The units of a thread block, by warp.
LB_FN constexpr SkinnySplit skinny_units(int n_tiles, int n_k_blocks) { return skinny_split(n_tiles * n_k_blocks, kSkinnyWarps); }
// Warps that can have units of one tile.
LB_FN constexpr int skinny_max_partials(int n_tiles, int n_k_blocks) {
  const int each = skinny_units(n_tiles, n_k_blocks).each;
  return each == 0 ? n_k_blocks : (n_k_blocks + each - 2) / each + 1;
}

}  // namespace lb::gpu
