// What the matrix products' kernels and their launch functions must agree on. Read by host and device.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "ops/linear.h"
#include "quant/planes.h"

namespace lb::gpu {

// linear_vec: one row of x (grid y) against tiles of weight rows, a warp a tile.
inline constexpr int kVecTileRows = 2;  // share what a warp reads of x
inline constexpr int kVecMaxThreads = 256;
inline constexpr int kVecPartBytes = 40 << 10;  // of x in shared memory; a longer x is taken in parts

// x in shared memory: fp32, or 8-bit codes with 8 bytes (scale, two sums) for each 32 of them.
struct VecParts {
  int n_parts;
  int values;          // of a part, the last may be shorter; a multiple of 256, so a part ends with a block of weights
  size_t stage_bytes;  // of shared memory for a part
};

LB_FN constexpr VecParts vec_parts(int n_in, bool is_int8) {
  constexpr int kUnit = 256;
  const int most = is_int8 ? kVecPartBytes / 40 * 32 / kUnit * kUnit : kVecPartBytes / 4;
  VecParts parts = {};
  parts.n_parts = (n_in + most - 1) / most;
  if (parts.n_parts == 0) parts.n_parts = 1;
  parts.values = ((n_in + parts.n_parts - 1) / parts.n_parts + kUnit - 1) / kUnit * kUnit;
  parts.stage_bytes = size_t(parts.values) * (is_int8 ? 40 : 128) / 32;
  return parts;
}

LB_FN constexpr int vec_tiles(int n_out) { return (n_out + kVecTileRows - 1) / kVecTileRows; }

// Which products of a group a block works at, and as which of how many blocks: all of them when they are of one type;
// else one, whose share of the blocks follows its share of the bytes. A grid has at least one block a product.
struct VecShare {
  int first, last;  // products
  int block, n_blocks;
};

LB_FN constexpr long vec_weight_bytes(const Linear& op) {
  const quant::PlaneFormat format = quant::plane_format(op.type);
  return long(op.n_in / format.block_values) * format.block_bytes * op.n_out;
}

LB_FN constexpr VecShare vec_share(const LinearGroup& group, bool is_mixed, int block, int n_blocks) {
  VecShare share = {0, group.n, block, n_blocks};
  if (!is_mixed) return share;
  long total = 0, before = 0;
  for (int i = 0; i < kMaxProducts; ++i)
    if (i < group.n) total += vec_weight_bytes(group.products[i]);
  for (int i = 0; i < kMaxProducts; ++i) {  // constant indices once unrolled: the parameters stay where they are
    if (i >= group.n) continue;
    const long behind = before + vec_weight_bytes(group.products[i]);
    const int begin = i + int((n_blocks - group.n) * before / total);
    const int end = i + 1 + int((n_blocks - group.n) * behind / total);
    if (begin <= block && block < end) share = {i, i + 1, block - begin, end - begin};
    before = behind;
  }
  return share;
}

// Sums that a block keeps between parts: fp32, in shared memory behind the part. `tiles` and `n_blocks` of a share.
LB_FN constexpr int vec_kept_sums(int tiles, int n_blocks) { return (tiles / n_blocks + 1) * kVecTileRows; }

// linear_tile: 64 x 64 outputs a block.
inline constexpr int kTileRows = 64, kTileOuts = 64, kTileThreads = 128;

}  // namespace lb::gpu
