// What the kernels of products with few rows of x (src/gpu/linear_few.h) and their launch functions must agree on. Read
// by host and device.
//
// The outputs of all products of a group are numbered one after another, each product's from the next whole tile of 16
// on (FewMakes::kGated: two tiles of either product in turn), and cut into n_ranges of tiles, the inner dimension into
// n_slices of blocks of 256 values. Thread block range * n_slices + slice has one of each; there it has units of a tile
// and 256 values, numbered with the values fastest, and warp w of those that have any has the units [n_units w /
// n_warps, n_units (w + 1) / n_warps). What a warp has of a tile is a piece; it lies in the place of its thread block,
// at tile + w.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "ops/linear.h"
#include "ops/round_rows.h"
#include "quant/planes.h"

namespace lb::gpu {

inline constexpr int kFewThreads = 384;  // of 168 registers each
inline constexpr int kFewWarps = kFewThreads / 32;
inline constexpr int kFewOuts = 16, kFewValues = 256;  // of a unit
inline constexpr int kFewRanges = 1024;                // at most

// x of a slice in shared memory: for each 256 values, for each row of a tile, the values as 16-bit numbers, in units of
// a power of two that brings the largest to 127 to 254, in the order of the products, the sums of its runs as two
// 16-bit numbers each, and the power. What follows each other starts in different halves of the banks.
inline constexpr int kFewRowBytes = kFewValues * 2 + 64;
// Where a row's sums are; in pairs of rows at one place, so that four rows lie in different banks.
LB_FN constexpr int few_sums_at(int row) { return kFewValues * 2 + row / 2 % 2 * 32; }
// The 32 bytes beside them, and where its power is there; so that of eight rows every second lies in another bank.
LB_FN constexpr int few_rest_at(int row) { return kFewValues * 2 + (1 - row / 2 % 2) * 32; }
LB_FN constexpr int few_power_at(int row) { return few_rest_at(row) + row / 4 % 2 * 8; }

// x that is to be normed yet: what of it shares a factor.
enum class FewNorm : int { kNone, kRow, kHead };
inline constexpr int kFewHead = 128;  // values of a head

// What becomes of the sums:
//   kSums    y
//   kNormed  y, of one product, and y * norm_w rounded, with sums of squares of y: who reads these finds what the norm
//            divides by
//   kGated   silu(products[0]) * products[1], rounded; no y
enum class FewMakes : int { kSums, kNormed, kGated };

// Tiles that are made together: a run of 32 values has two.
LB_FN constexpr int few_grain(FewMakes makes) {
  return makes == FewMakes::kSums ? 1 : makes == FewMakes::kNormed ? 2 : 4;
}

struct LinearFew {
  LinearGroup group;  // of one type
  RoundedRows x;      // codes and scales
  FewNorm norm;
  const float* squares;  // [rows, n_in / 32] of x before its norm; null without one
  float eps;             // of that norm
  FewMakes makes;
  const float* norm_w;           // kNormed: [n_out]
  RoundedRows made;              // kNormed, kGated: [rows, n_out]; for kNormed sum has the sums of squares
  float* pieces;                 // [n_ranges, n_slices, few_pieces(range_tiles), tile_rows, 16]
  uint32_t* arrived;             // [n_ranges], zero at first, and nobody else's
  int first_tile[kMaxProducts];  // of each product, where they do not take turns
  int n_tiles, n_slices, n_ranges;
  int range_tiles;  // that a range has at most
  bool is_cluster;  // the blocks of a range are one
};

LB_FN constexpr int few_pieces(int range_tiles) { return range_tiles + kFewWarps - 1; }

LB_FN constexpr int few_x_bytes(int tile_rows, int n_blocks) { return tile_rows * n_blocks * kFewRowBytes; }

// Shared memory: the table of pieces, of 8 bytes for a tile and a slice, then x, and where that was, sums of tiles of
// which something is made.
inline constexpr int kFewPieceBytes = 8;
LB_FN constexpr int few_table_bytes(int range_tiles, int n_slices) {
  return (range_tiles * n_slices * kFewPieceBytes + 127) / 128 * 128;
}
inline constexpr int kFewSumBytes = 32 * 16;  // of a tile and eight rows
LB_FN constexpr int few_sums_bytes(int tile_rows, int n_tiles) { return tile_rows / 8 * n_tiles * kFewSumBytes; }
inline constexpr int kFewCluster = 2;  // blocks: more do not fill all multiprocessors, whose groups vary in size

struct FewSlice {
  int first_block, n_blocks;
};
LB_FN constexpr FewSlice few_slice(int n_in, int n_slices, int slice) {
  const int n = n_in / kFewValues, first = n * slice / n_slices;
  return {first, n * (slice + 1) / n_slices - first};
}
struct FewRange {
  int first_tile, end_tile;
};
LB_FN constexpr FewRange few_range(const LinearFew& p, int range) {
  const long grain = few_grain(p.makes), n_grains = p.n_tiles / grain;
  return {int(n_grains * range / p.n_ranges * grain), int(n_grains * (range + 1) / p.n_ranges * grain)};
}
// Which warps of a thread block have units, and which units.
struct FewUnits {
  int n_units, n_warps;
};
LB_FN constexpr FewUnits few_units(int n_tiles, int n_blocks) {
  const int n_units = n_tiles * n_blocks;
  return {n_units, n_units < kFewWarps ? n_units : kFewWarps};
}
LB_FN constexpr int few_first_unit(const FewUnits& units, int warp) {
  return warp < units.n_warps ? units.n_units * warp / units.n_warps : units.n_units;
}
LB_FN constexpr int few_warp_of(const FewUnits& units, int unit) {
  return ((unit + 1) * units.n_warps - 1) / units.n_units;
}

}  // namespace lb::gpu
