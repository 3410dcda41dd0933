// Ops of vision towers. Patches are in the tower's order: block by block of merge x merge patches, blocks row by row.
#pragma once

#include <stdint.h>

#include "quant/half.h"  // LB_FN
#include "quant/kv_type.h"

namespace lb {

// Row and column of patch i of an image that is `columns` patches wide.
struct PatchPlace {
  int row, column;
};
LB_FN PatchPlace patch_place(int i, int columns, int merge) {
  const int block = i / (merge * merge), inside = i % (merge * merge), per_row = columns / merge;
  return {block / per_row * merge + inside / merge, block % per_row * merge + inside % merge};
}

// y[r] = the pixels of patch first + r, channel by channel: level[channel][byte]
struct ReadPatches {
  const uint8_t* rgb;  // [height * patch, columns * patch, 3]
  const float* level;  // [3, 256]
  float* y;            // [rows, 3 * patch * patch]
  int first, rows;
  int height, columns;  // of the image, in patches
  int patch, merge;
};

// y[r,:] += the position table at patch first + r, bilinear: the table's corners are at the image's corner patches.
struct AddPositions {
  float* y;              // [rows, dim]
  const float* table;    // [side * side, dim]
  int first, rows, dim;  // dim a multiple of 4
  int height, columns;   // of the image, in patches
  int side, merge;
};

// y[r,:] += table[0, column of patch first + r] + table[1, its row]
struct AddAxisPositions {
  float* y;              // [rows, dim]
  const float* table;    // [2, side, dim]
  int first, rows, dim;  // dim a multiple of 4
  int columns;           // of the image, in patches; rows and columns are at most side
  int side, merge;
};

// y[r,:] = (factor * mean of the `block` rows of x from block * r on - bias) * scale
struct PoolPatches {
  const float* x;        // [rows * block, dim]
  const float* bias;     // [dim]; null: 0
  const float* scale;    // [dim]; null: 1; with a bias only
  float* y;              // [rows, dim]
  int rows, dim, block;  // dim a multiple of 4
  float factor;
};

// y = min(max(x, lowest), highest)
struct Clamp {
  const float* x;  // [rows, dim]
  float* y;        // [rows, dim]; may be x
  int rows, dim;
  float lowest, highest;
};

// y[r,:] = (x[r,:] - mean) / sqrt(variance + eps) * w + b
struct LayerNorm {
  const float* x;  // [rows, dim]
  const float* w;  // [dim]
  const float* b;  // [dim]
  float* y;        // [rows, dim]; may be x
  int rows, dim;   // dim a multiple of 4
  float eps;
};

// y = gelu(y + bias)
struct BiasGelu {
  float* y;           // [rows, dim]
  const float* bias;  // [dim]
  int rows, dim;      // dim a multiple of 4
  int is_exact;       // 1: by erf; 0: its tanh approximation
};

// The heads of q, k and v apart, with their biases; q and k rotated, all padded with zeros to `padded` values. The
// pairs of a head are as in Rope (kHalves); with is_by_axis each half of the head is paired by itself. Row r of k and v
// becomes slot first + r of pages as in KvLayer, whose page table is 0, 1, 2, ...
struct SplitHeads {
  const float* x;     // [rows, 3, heads, dim] projected q, k and v, strides below
  const float* bias;  // [3, heads, dim]; null: none
  const float* cos;   // [rows, dim / 2]
  const float* sin;   // [rows, dim / 2]
  float* q;           // [heads, rows, padded]; null: not written
  void* k;            // pages of `type`, kF16 or kF32
  void* v;            // the same
  KvType type;
  int rows, heads, dim, padded;  // dim and padded are multiples of 4
  int first;
  long row_stride, part_stride;  // values between rows of x, and between q, k and v
  int is_by_axis;                // 1: dim is a multiple of 8
};

// The first column of pair p of a head, and the distance to the second.
struct PairColumns {
  int at, distance;
};
LB_FN PairColumns pair_columns(int p, int dim, int is_by_axis) {
  const int span = is_by_axis != 0 ? dim / 4 : dim / 2;
  return {p / span * 2 * span + p % span, span};
}

// y[r,h,:] = x[h,r,:], without the padding
struct MergeHeads {
  const float* x;                // [heads, rows, padded]
  float* y;                      // [rows, heads, dim]
  int rows, heads, dim, padded;  // dim and padded are multiples of 4
};

}  // namespace lb
