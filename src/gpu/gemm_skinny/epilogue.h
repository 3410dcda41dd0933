// Epilogue of skinny GEMM: the thread blocks of a range add its partials, then optionally fuse the next norm or gate.
//
// Each block adds the partials of its share of the range's tiles, in the order of slices and warps. If only the next
// GEMMs read the sums, the block computes their x directly: the norm without its factor, or the gate. The blocks of a
// range spin on each other. Two blocks form a cluster; more than two need all blocks of the grid co-resident. This code
// runs once per launch and its instructions come from memory, so it is short.
#pragma once

#include "cluster.h"
#include "gpu/activation.h"
#include "gpu/gemm_skinny/shape.h"
#include "gpu/narrow.h"
#include "gpu/round_block.h"

namespace lb::gpu {

// The matrix that contains a tile, and the tile's first output in it. Constant indices keep the parameters in constant
// memory.
struct SkinnyTile {
  const void* w;
  const float* add;
  float* y;
  int n_out, first_out;
  LB_DEVICE SkinnyTile(const GemmSkinny& p, int tile) {
    const bool take_turns = p.epilogue == Epilogue::kGated;
    const Linear& first = p.group.products[0];
    w = first.w, add = first.add, y = first.y, n_out = first.n_out;
    int first_tile = 0;
    LB_UNROLL
    for (int i = 1; i < kMaxProducts; ++i)
      if (i < p.group.n && (take_turns ? tile / 2 % 2 == i : tile >= p.first_tile[i])) {
        const Linear& other = p.group.products[i];
        w = other.w, add = other.add, y = other.y, n_out = other.n_out;
        first_tile = p.first_tile[i];
      }
    first_out = (take_turns ? tile / 4 * 2 + tile % 2 : tile - first_tile) * kSkinnyOuts;
  }
};

// The range and slice of a thread block. is_second: the range belongs to the group's second type.
struct SkinnyWork {
  int range, slice;
  int first_k_block, n_k_blocks, n_grains, first_tile, n_tiles;
  SkinnySplit units;
  int n_in;
  LB_DEVICE SkinnyWork(const GemmSkinny& p, int range_, int slice_, bool is_second)
      : range(range_),
        slice(slice_),
        first_k_block(first_of(p.slices, slice)),
        n_k_blocks(size_of(p.slices, slice)),
        n_grains(is_second ? size_of(p.second_ranges, range - p.second_range_begin) : size_of(p.ranges, range)),
        first_tile(is_second ? p.second_tile_begin + first_of(p.second_ranges, range - p.second_range_begin)
                             : first_of(p.ranges, range) * skinny_grain(p.epilogue)),
        n_tiles(is_second ? n_grains : n_grains * skinny_grain(p.epilogue)),
        units(skinny_units(n_tiles, n_k_blocks)),
        n_in(p.group.products[0].n_in) {}
};

// The tiles [first, first + n) of its range whose partials a thread block adds.
struct SkinnySumTiles {
  int first, n;
  LB_DEVICE SkinnySumTiles(const GemmSkinny& p, const SkinnyWork& work) {
    const int grain = skinny_grain(p.epilogue);
    const SkinnySplit parts = skinny_split(work.n_grains, p.n_slices);
    first = first_of(parts, work.slice) * grain;
    n = size_of(parts, work.slice) * grain;
  }
};

// Waits until all blocks of the range have stored their partials. Together the blocks add 2^31, which flips the
// counter's top bit and leaves the other bits unchanged. The counter therefore needs no reset (as in grid_barrier).
LB_DEVICE void wait_for_range(uint32_t* counter, int slice, int n_slices) {
  block_barrier();
  if (thread_id() == 0 && n_slices > 1) {
    const uint32_t before = atomic_add_ordered(counter, slice == 0 ? 0x80000000u - uint32_t(n_slices - 1) : 1u);
    while (((load_acquire(counter) ^ before) & 0x80000000u) == 0) {
    }
  }
  block_barrier();
}

LB_DEVICE int32_t* skinny_table() {
  uint8_t* memory = dynamic_shared<uint8_t>();
  return reinterpret_cast<int32_t*>(memory);
}
LB_DEVICE uint8_t* skinny_behind_table(const GemmSkinny& p) {
  return dynamic_shared<uint8_t>() + skinny_table_bytes(p.max_sum_tiles, p.tile_partials);
}

// Fills the table with the indices of the partials of this block's tiles, -1 for none.
LB_DEVICE void build_partial_table(const GemmSkinny& p, const SkinnyWork& work) {
  const SkinnySumTiles sum_tiles(p, work);
  const int slots = skinny_partials(p.max_range_tiles);
  LB_UNROLL_BY(1)
  for (int i = thread_id(); i < sum_tiles.n * p.tile_partials; i += kSkinnyThreads) {
    const int sum_tile = i / p.tile_partials, tile = sum_tiles.first + sum_tile, slot = i - sum_tile * p.tile_partials;
    const int slice = slot / p.slice_partials, partial = slot - slice * p.slice_partials;
    int at = -1;
    if (slice < p.n_slices) {
      const int n_k_blocks = size_of(p.slices, slice);
      const SkinnySplit units = skinny_units(work.n_tiles, n_k_blocks);
      const int warp = part_of(units, tile * n_k_blocks) + partial;
      if (warp <= part_of(units, (tile + 1) * n_k_blocks - 1))
        at = (work.range * p.n_slices + slice) * slots + tile + warp;
    }
    store(skinny_table() + i, at);
  }
}

// Address of this lane's 16 bytes of a tile's sums in shared memory, [tiles of SkinnySumTiles, rows / 8, 32 lanes].
template <int kRows>
LB_DEVICE uint8_t* skinny_sums_of(const GemmSkinny& p, int tile, int eight) {
  return skinny_behind_table(p) + (tile * (kRows / 8) + eight) * kSkinnySumBytes + lane() * 16;
}

// Adds the partials; a warp takes eight rows of a tile. Writes the sums to y, except before a gate. kNormed and kGated
// also keep them in shared memory.
template <int kRows>
LB_DEVICE void reduce_partials(const GemmSkinny& p, const SkinnyWork& work, const SkinnySumTiles& sum_tiles) {
  constexpr int kEights = kRows / 8;
  LB_UNROLL_BY(1)
  for (int item = warp(); item < sum_tiles.n * kEights; item += kSkinnyWarps) {
    const int tile = item / kEights, eight = item % kEights;
    const SkinnyTile matrix(p, work.first_tile + sum_tiles.first + tile);
    long offsets[4];  // index in y, in the order of for_each_sum; -1 outside the matrix
    for_each_sum([&](int of_16, int row_of_8, int, int, int n) {
      const int out = matrix.first_out + of_16, row = eight * 8 + row_of_8;
      offsets[n] = out < matrix.n_out && row < p.group.products[0].rows ? long(row) * matrix.n_out + out : -1;
    });
    f32x4 sums = {};
    if (matrix.add != nullptr) {
      LB_UNROLL
      for (int n = 0; n < 4; ++n)
        if (offsets[n] >= 0) sums[n] = matrix.add[offsets[n]];
    }
    const float* partials = p.partials + (eight * 32 + lane()) * 4;
    LB_UNROLL_BY(1)
    for (int first = 0; first < p.tile_partials; first += kSkinnyPartialBatch) {
      f32x4 loaded[kSkinnyPartialBatch] = {};
      LB_UNROLL
      for (int i = 0; i < kSkinnyPartialBatch; ++i) {
        const int partial = load<int32_t>(skinny_table() + tile * p.tile_partials + first + i);
        if (partial >= 0) loaded[i] = load<f32x4>(partials + long(partial) * (kRows * kSkinnyOuts));
      }
      LB_UNROLL
      for (int i = 0; i < kSkinnyPartialBatch; ++i) {
        LB_UNROLL
        for (int n = 0; n < 4; ++n) sums[n] += loaded[i][n];
      }
    }
    if (p.epilogue != Epilogue::kSums) store(skinny_sums_of<kRows>(p, tile, eight), sums);
    if (p.epilogue == Epilogue::kGated) continue;
    LB_UNROLL
    for (int n = 0; n < 4; ++n)
      if (offsets[n] >= 0) matrix.y[offsets[n]] = sums[n];
  }
}

// Rounds a block of 32 values for eight rows, as a warp. The block spans two tiles. The lanes of a row differ in lane /
// 4.
LB_DEVICE void round_eight_rows(const RoundedRows& to, int n_out, int first_out, int first_row, int rows,
                                const f32x4 (&v)[2]) {
  LB_UNROLL
  for (int j = 0; j < 2; ++j) {
    int largest = 0;
    LB_UNROLL
    for (int i = 0; i < 4; ++i) largest = max(largest, magnitude(v[i / 2][i % 2 * 2 + j]));
    LB_UNROLL
    for (int mask = 4; mask < 32; mask *= 2) largest = max(largest, shuffle_xor(largest, mask));
    const BlockScale scale(largest);
    const int row = first_row + lane() % 4 * 2 + j;
    if (row >= rows) continue;
    const long at = long(row) * n_out + first_out;
    LB_UNROLL
    for (int i = 0; i < 4; ++i) to.high[at + i * 8 + lane() / 4] = int8_t(scale.code(v[i / 2][i % 2 * 2 + j]));
    if (lane() / 4 == 0) to.scale[at / kRoundBlock] = scale.scale();
  }
}

// Like round_eight_rows, but stores 16-bit numbers.
template <DType kType>
LB_DEVICE void narrow_eight_rows(const RoundedRows& to, int n_out, int first_out, int first_row, int rows,
                                 const f32x4 (&v)[2]) {
  LB_UNROLL
  for (int j = 0; j < 2; ++j) {
    const int row = first_row + lane() % 4 * 2 + j;
    if (row >= rows) continue;
    auto* at = reinterpret_cast<uint16_t*>(to.high) + (long(row) * n_out + first_out + lane() / 4);
    LB_UNROLL
    for (int i = 0; i < 4; ++i) at[i * 8] = narrow(v[i / 2][i % 2 * 2 + j], kType);
  }
}

// Loads the norm's weights for a block of 32 values.
LB_DEVICE f32x4 load_norm_weights(const GemmSkinny& p, int first_out) {
  f32x4 w = {};
  if (p.epilogue != Epilogue::kNormed) return w;
  LB_UNROLL
  for (int i = 0; i < 4; ++i) w[i] = p.norm_w[first_out + i * 8 + lane() / 4];
  return w;
}

// Computes eight rows of a 32-value block of next_x from the tiles of a grain, as a warp. norm_w: the norm's weights
// for that block. kType: the weights' type, which sets the form of x.
template <DType kType, int kRows>
LB_DEVICE void make_next_x(const GemmSkinny& p, int tile, int eight, int first_out, const f32x4& norm_w) {
  const bool is_gated = p.epilogue == Epilogue::kGated;
  const int n_out = p.group.products[0].n_out, rows = p.group.products[0].rows;
  f32x4 out[2];
  float squares[2] = {};
  LB_UNROLL
  for (int i = 0; i < 2; ++i) {
    out[i] = load<f32x4>(skinny_sums_of<kRows>(p, tile + i, eight));
    if (is_gated) {
      const f32x4 up = load<f32x4>(skinny_sums_of<kRows>(p, tile + 2 + i, eight));
      LB_UNROLL
      for (int n = 0; n < 4; ++n) out[i][n] = silu(out[i][n]) * up[n];
    } else {
      LB_UNROLL
      for (int n = 0; n < 4; ++n) {
        squares[n % 2] = fma(out[i][n], out[i][n], squares[n % 2]);
        out[i][n] *= norm_w[2 * i + n / 2];
      }
    }
  }
  if constexpr (skinny_is_plain(kType))
    narrow_eight_rows<kType>(p.next_x, n_out, first_out, eight * 8, rows, out);
  else
    round_eight_rows(p.next_x, n_out, first_out, eight * 8, rows, out);
  if (is_gated) return;
  LB_UNROLL
  for (int j = 0; j < 2; ++j) {
    LB_UNROLL
    for (int mask = 4; mask < 32; mask *= 2) squares[j] += shuffle_xor(squares[j], mask);
    const int row = eight * 8 + lane() % 4 * 2 + j;
    if (lane() / 4 == 0 && row < rows) p.next_x.sum[(long(row) * n_out + first_out) / kRoundBlock] = squares[j];
  }
}

// Runs the whole epilogue of a thread block.
template <DType kType, int kRows>
LB_DEVICE void reduce_range(const GemmSkinny& p, const SkinnyWork& work) {
  constexpr int kEights = kRows / 8;
  const SkinnySumTiles sum_tiles(p, work);
  const int grain = skinny_grain(p.epilogue), n_items = sum_tiles.n / grain * kEights;
  const auto tile_of = [&](int item) { return item / kEights * grain; };
  const auto out_of = [&](int item) {
    const int tile = work.first_tile + sum_tiles.first + tile_of(item);
    return (p.epilogue == Epilogue::kGated ? tile / 2 : tile) * kSkinnyOuts;
  };
  int item = warp();
  f32x4 norm_w = {};
  if (item < n_items) norm_w = load_norm_weights(p, out_of(item));  // loaded while other blocks still multiply
  if (p.is_cluster)
    cluster_barrier();
  else
    wait_for_range(p.arrived + work.range, work.slice, p.n_slices);
  reduce_partials<kRows>(p, work, sum_tiles);
  if (p.epilogue == Epilogue::kSums) return;
  block_barrier();
  LB_UNROLL_BY(1)
  while (item < n_items) {
    make_next_x<kType, kRows>(p, tile_of(item), item % kEights, out_of(item), norm_w);
    item += kSkinnyWarps;
    if (item < n_items) norm_w = load_norm_weights(p, out_of(item));
  }
}

}  // namespace lb::gpu
