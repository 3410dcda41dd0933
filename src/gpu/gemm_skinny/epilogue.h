// What a thread block of products of few rows has, and what becomes of the pieces of its range: they are added in the
// order of slices and warps by all blocks of the range, a share of its outputs each, and of the sums, where nobody else
// reads them, the x of the next products is made at once: their norm, but for what it divides by, or their gate. The
// blocks of a range wait for each other: as a cluster where there are two of them, else the grid has to be alive at
// once. The code runs once and comes from memory, so it is short.
#pragma once

#include "cluster.h"
#include "gpu/activation.h"
#include "gpu/gemm_skinny/shape.h"
#include "gpu/narrow.h"
#include "gpu/round_run.h"

namespace lb::gpu {

// A tile's product, and its first output there. Constant indices keep the parameters where they are.
struct SkinnyTile {
  const void* w;
  const float* add;
  float* y;
  int n_out, first_out;
  LB_DEVICE SkinnyTile(const GemmSkinny& p, int tile) {
    const bool take_turns = p.makes == Epilogue::kGated;
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

// What a thread block has; is_second: of the group's second type.
struct SkinnyShare {
  int range, slice;
  int first_block, n_blocks, n_grains, first_tile, n_tiles;
  SkinnyParts units;
  int n_in;
  LB_DEVICE SkinnyShare(const GemmSkinny& p, int range_, int slice_, bool is_second)
      : range(range_),
        slice(slice_),
        first_block(first_of(p.slices, slice)),
        n_blocks(size_of(p.slices, slice)),
        n_grains(is_second ? size_of(p.second_ranges, range - p.second_range) : size_of(p.ranges, range)),
        first_tile(is_second ? p.second_tile + first_of(p.second_ranges, range - p.second_range)
                             : first_of(p.ranges, range) * skinny_grain(p.makes)),
        n_tiles(is_second ? n_grains : n_grains * skinny_grain(p.makes)),
        units(skinny_units(n_tiles, n_blocks)),
        n_in(p.group.products[0].n_in) {}
};

// The tiles of a range that a thread block adds up.
struct SkinnyAdded {
  int first, n;
  LB_DEVICE SkinnyAdded(const GemmSkinny& p, const SkinnyShare& share) {
    const int grain = skinny_grain(p.makes);
    const SkinnyParts parts = skinny_parts(share.n_grains, p.n_slices);
    first = first_of(parts, share.slice) * grain;
    n = size_of(parts, share.slice) * grain;
  }
};

// Until all blocks of a range have left their pieces. Adds up to 2^31, which flips the top bit of the counter and
// leaves the rest as it was, as grid_barrier does: nobody resets it.
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
  return dynamic_shared<uint8_t>() + skinny_table_bytes(p.share_tiles, p.tile_pieces);
}

// Where the pieces of the tiles that the block adds up lie, -1 for none.
LB_DEVICE void find_pieces(const GemmSkinny& p, const SkinnyShare& share) {
  const SkinnyAdded added(p, share);
  const int slots = skinny_pieces(p.range_tiles);
  LB_UNROLL_BY(1)
  for (int i = thread_id(); i < added.n * p.tile_pieces; i += kSkinnyThreads) {
    const int of_tile = i / p.tile_pieces, tile = added.first + of_tile, place = i - of_tile * p.tile_pieces;
    const int slice = place / p.slice_pieces, piece = place - slice * p.slice_pieces;
    int at = -1;
    if (slice < p.n_slices) {
      const int n_blocks = size_of(p.slices, slice);
      const SkinnyParts units = skinny_units(share.n_tiles, n_blocks);
      const int warp = part_of(units, tile * n_blocks) + piece;
      if (warp <= part_of(units, (tile + 1) * n_blocks - 1))
        at = (share.range * p.n_slices + slice) * slots + tile + warp;
    }
    store(skinny_table() + i, at);
  }
}

// The sums of a tile that the block has left in shared memory, [tiles it adds up, eights].
template <int kRows>
LB_DEVICE uint8_t* skinny_sums_of(const GemmSkinny& p, int tile, int eight) {
  return skinny_behind_table(p) + (tile * (kRows / 8) + eight) * kSkinnySumBytes + lane() * 16;
}

// Sums of the pieces of eight rows of a tile, by a warp; they are y, but for a gate, and stay in shared memory for what
// is made of them.
template <int kRows>
LB_DEVICE void add_pieces(const GemmSkinny& p, const SkinnyShare& share, const SkinnyAdded& added) {
  constexpr int kEights = kRows / 8;
  LB_UNROLL_BY(1)
  for (int item = warp(); item < added.n * kEights; item += kSkinnyWarps) {
    const int tile = item / kEights, eight = item % kEights;
    const SkinnyTile of(p, share.first_tile + added.first + tile);
    long places[4];  // in y, as for_each_sum has them; none behind the product and the last row
    for_each_sum([&](int of_16, int row_of_8, int, int, int n) {
      const int out = of.first_out + of_16, row = eight * 8 + row_of_8;
      places[n] = out < of.n_out && row < p.group.products[0].rows ? long(row) * of.n_out + out : -1;
    });
    f32x4 sums = {};
    if (of.add != nullptr) {
      LB_UNROLL
      for (int n = 0; n < 4; ++n)
        if (places[n] >= 0) sums[n] = of.add[places[n]];
    }
    const float* pieces = p.pieces + (eight * 32 + lane()) * 4;
    LB_UNROLL_BY(1)
    for (int first = 0; first < p.tile_pieces; first += kSkinnyAtOnce) {
      f32x4 more[kSkinnyAtOnce] = {};
      LB_UNROLL
      for (int i = 0; i < kSkinnyAtOnce; ++i) {
        const int piece = load<int32_t>(skinny_table() + tile * p.tile_pieces + first + i);
        if (piece >= 0) more[i] = load<f32x4>(pieces + long(piece) * (kRows * kSkinnyOuts));
      }
      LB_UNROLL
      for (int i = 0; i < kSkinnyAtOnce; ++i) {
        LB_UNROLL
        for (int n = 0; n < 4; ++n) sums[n] += more[i][n];
      }
    }
    if (p.makes != Epilogue::kSums) store(skinny_sums_of<kRows>(p, tile, eight), sums);
    if (p.makes == Epilogue::kGated) continue;
    LB_UNROLL
    for (int n = 0; n < 4; ++n)
      if (places[n] >= 0) of.y[places[n]] = sums[n];
  }
}

// Rounds 32 values of eight rows, as two tiles have them, by a warp. The lanes of a row differ in lane / 4.
LB_DEVICE void round_few(const RoundedRows& to, int n_out, int first_out, int first_row, int rows,
                         const f32x4 (&v)[2]) {
  LB_UNROLL
  for (int j = 0; j < 2; ++j) {
    int largest = 0;
    LB_UNROLL
    for (int i = 0; i < 4; ++i) largest = max(largest, magnitude(v[i / 2][i % 2 * 2 + j]));
    LB_UNROLL
    for (int mask = 4; mask < 32; mask *= 2) largest = max(largest, shuffle_xor(largest, mask));
    const RunScale run(largest);
    const int row = first_row + lane() % 4 * 2 + j;
    if (row >= rows) continue;
    const long at = long(row) * n_out + first_out;
    LB_UNROLL
    for (int i = 0; i < 4; ++i) to.high[at + i * 8 + lane() / 4] = int8_t(run.code(v[i / 2][i % 2 * 2 + j]));
    if (lane() / 4 == 0) to.scale[at / kRoundRun] = run.scale();
  }
}

// The same as 16-bit numbers.
template <DType kType>
LB_DEVICE void narrow_few(const RoundedRows& to, int n_out, int first_out, int first_row, int rows,
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

// The weights of a norm that a warp needs to make eight rows of 32 values.
LB_DEVICE f32x4 few_norm_weights(const GemmSkinny& p, int first_out) {
  f32x4 w = {};
  if (p.makes != Epilogue::kNormed) return w;
  LB_UNROLL
  for (int i = 0; i < 4; ++i) w[i] = p.norm_w[first_out + i * 8 + lane() / 4];
  return w;
}

// What is made of tiles that belong together, for eight rows, by a warp. norm_w is of them; kType: of the weights.
template <DType kType, int kRows>
LB_DEVICE void make_few(const GemmSkinny& p, int tile, int eight, int first_out, const f32x4& norm_w) {
  const bool is_gated = p.makes == Epilogue::kGated;
  const int n_out = p.group.products[0].n_out, rows = p.group.products[0].rows;
  f32x4 made[2];
  float squares[2] = {};
  LB_UNROLL
  for (int i = 0; i < 2; ++i) {
    made[i] = load<f32x4>(skinny_sums_of<kRows>(p, tile + i, eight));
    if (is_gated) {
      const f32x4 up = load<f32x4>(skinny_sums_of<kRows>(p, tile + 2 + i, eight));
      LB_UNROLL
      for (int n = 0; n < 4; ++n) made[i][n] = silu(made[i][n]) * up[n];
    } else {
      LB_UNROLL
      for (int n = 0; n < 4; ++n) {
        squares[n % 2] = fma(made[i][n], made[i][n], squares[n % 2]);
        made[i][n] *= norm_w[2 * i + n / 2];
      }
    }
  }
  if constexpr (skinny_is_plain(kType))
    narrow_few<kType>(p.made, n_out, first_out, eight * 8, rows, made);
  else
    round_few(p.made, n_out, first_out, eight * 8, rows, made);
  if (is_gated) return;
  LB_UNROLL
  for (int j = 0; j < 2; ++j) {
    LB_UNROLL
    for (int mask = 4; mask < 32; mask *= 2) squares[j] += shuffle_xor(squares[j], mask);
    const int row = eight * 8 + lane() % 4 * 2 + j;
    if (lane() / 4 == 0 && row < rows) p.made.sum[(long(row) * n_out + first_out) / kRoundRun] = squares[j];
  }
}

// A block adds up its share of the range's tiles, and makes of them what is asked for.
template <DType kType, int kRows>
LB_DEVICE void sum_range(const GemmSkinny& p, const SkinnyShare& share) {
  constexpr int kEights = kRows / 8;
  const SkinnyAdded added(p, share);
  const int grain = skinny_grain(p.makes), n_made = added.n / grain * kEights;
  const auto tile_of = [&](int item) { return item / kEights * grain; };
  const auto out_of = [&](int item) {
    const int tile = share.first_tile + added.first + tile_of(item);
    return (p.makes == Epilogue::kGated ? tile / 2 : tile) * kSkinnyOuts;
  };
  int item = warp();
  f32x4 norm_w = {};
  if (item < n_made) norm_w = few_norm_weights(p, out_of(item));  // while others have units
  if (p.is_cluster)
    cluster_barrier();
  else
    wait_for_range(p.arrived + share.range, share.slice, p.n_slices);
  add_pieces<kRows>(p, share, added);
  if (p.makes == Epilogue::kSums) return;
  block_barrier();
  LB_UNROLL_BY(1)
  while (item < n_made) {
    make_few<kType, kRows>(p, tile_of(item), item % kEights, out_of(item), norm_w);
    item += kSkinnyWarps;
    if (item < n_made) norm_w = few_norm_weights(p, out_of(item));
  }
}

}  // namespace lb::gpu
