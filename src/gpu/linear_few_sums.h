// What a thread block of products of few rows has, and what becomes of the pieces of its range: they are added in the
// order of slices and warps by all blocks of the range, a share of its outputs each, and of the sums, where nobody else
// reads them, the x of the next products is made at once: their norm, but for what it divides by, or their gate. The
// blocks of a range wait for each other: as a cluster where there are two of them, else the grid has to be alive at
// once. The code runs once and comes from memory, so it is short.
#pragma once

#include "activation.h"
#include "cluster.h"
#include "launch/linear_few_shape.h"
#include "round_run.h"

namespace lb::gpu {

// A tile's product, and its first output there. Constant indices keep the parameters where they are.
struct FewTile {
  const void* w;
  const float* add;
  float* y;
  int n_out, first_out;
  LB_DEVICE FewTile(const LinearFew& p, int tile) {
    const bool take_turns = p.makes == FewMakes::kGated;
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
    first_out = (take_turns ? tile / 4 * 2 + tile % 2 : tile - first_tile) * kFewOuts;
  }
};

// What a thread block has.
struct FewShare {
  int range, slice;
  FewSlice blocks;
  FewRange tiles;
  FewUnits units;
  int n_tiles, n_in;
  LB_DEVICE FewShare(const LinearFew& p, int thread_block)
      : range(thread_block / p.n_slices),
        slice(thread_block - range * p.n_slices),
        blocks(few_slice(p.group.products[0].n_in, p.n_slices, slice)),
        tiles(few_range(p, range)),
        n_tiles(tiles.end_tile - tiles.first_tile),
        n_in(p.group.products[0].n_in) {
    units = few_units(n_tiles, blocks.n_blocks);
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

// Where the pieces of a tile lie: the first of a slice, and how many.
struct FewPieces {
  int first, n;
};
static_assert(sizeof(FewPieces) == kFewPieceBytes);

LB_DEVICE FewPieces* few_table() {
  uint8_t* memory = dynamic_shared<uint8_t>();
  return reinterpret_cast<FewPieces*>(memory);
}
LB_DEVICE uint8_t* few_behind_table(const LinearFew& p) {
  return dynamic_shared<uint8_t>() + few_table_bytes(p.range_tiles, p.n_slices);
}

// Of all tiles of a range, [tiles, n_slices].
LB_DEVICE void find_few_pieces(const LinearFew& p, const FewShare& share) {
  for (int i = thread_id(); i < share.n_tiles * p.n_slices; i += kFewThreads) {
    const int tile = i / p.n_slices, slice = i - tile * p.n_slices;
    const int n_blocks = few_slice(share.n_in, p.n_slices, slice).n_blocks;
    const FewUnits units = few_units(share.n_tiles, n_blocks);
    const int first = few_warp_of(units, tile * n_blocks), last = few_warp_of(units, (tile + 1) * n_blocks - 1);
    few_table()[i] = {tile + first, last - first + 1};
  }
}

// The sums of eight rows of a tile, by a warp, as for_each_sum has them; they are y, but for a gate.
template <int kRows>
LB_DEVICE f32x4 sum_few_pieces(const LinearFew& p, const FewShare& share, int tile, int eight) {
  constexpr int kEights = kRows / 8, kAtOnce = 8;
  const FewTile of(p, share.tiles.first_tile + tile);
  long places[4];  // in y; none behind the product and the last row
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
  const FewPieces* pieces = few_table() + tile * p.n_slices;
  const int slots = few_pieces(p.range_tiles);
  int slice = 0, piece = 0;
  FewPieces some = pieces[0];
  while (slice < p.n_slices) {
    f32x4 more[kAtOnce] = {};
    LB_UNROLL
    for (int i = 0; i < kAtOnce; ++i) {
      if (slice == p.n_slices) continue;
      const long at = long(share.range * p.n_slices + slice) * slots + some.first + piece;
      more[i] = load<f32x4>(p.pieces + ((at * kEights + eight) * 32 + lane()) * 4);
      if (++piece < some.n) continue;
      piece = 0;
      if (++slice < p.n_slices) some = pieces[slice];
    }
    LB_UNROLL
    for (int i = 0; i < kAtOnce; ++i) {
      LB_UNROLL
      for (int n = 0; n < 4; ++n) sums[n] += more[i][n];
    }
  }
  if (p.makes == FewMakes::kGated) return sums;
  LB_UNROLL
  for (int n = 0; n < 4; ++n)
    if (places[n] >= 0) of.y[places[n]] = sums[n];
  return sums;
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

// The sums of a tile that the block has left in shared memory, [tiles of its share, eights].
template <int kRows>
LB_DEVICE uint8_t* few_sums_of(const LinearFew& p, int tile_of_share, int eight) {
  return few_behind_table(p) + (tile_of_share * (kRows / 8) + eight) * kFewSumBytes + lane() * 16;
}

// What is made of tiles that belong together, for eight rows, by a warp.
template <int kRows>
LB_DEVICE void make_few(const LinearFew& p, const FewShare& share, int first_of_share, int tile, int eight) {
  const bool is_gated = p.makes == FewMakes::kGated;
  const int n_out = p.group.products[0].n_out, rows = p.group.products[0].rows;
  const int first_tile = share.tiles.first_tile + first_of_share + tile;
  const int first_out = (is_gated ? first_tile / 2 : first_tile) * kFewOuts;
  f32x4 made[2];
  float squares[2] = {};
  LB_UNROLL
  for (int i = 0; i < 2; ++i) {
    made[i] = load<f32x4>(few_sums_of<kRows>(p, tile + i, eight));
    if (is_gated) {
      const f32x4 up = load<f32x4>(few_sums_of<kRows>(p, tile + 2 + i, eight));
      LB_UNROLL
      for (int n = 0; n < 4; ++n) made[i][n] = silu(made[i][n]) * up[n];
    } else {
      LB_UNROLL
      for (int n = 0; n < 4; ++n) {
        squares[n % 2] = fma(made[i][n], made[i][n], squares[n % 2]);
        made[i][n] *= p.norm_w[first_out + i * kFewOuts + n / 2 * 8 + lane() / 4];
      }
    }
  }
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
template <int kRows>
LB_DEVICE void sum_few_range(const LinearFew& p, const FewShare& share) {
  constexpr int kEights = kRows / 8;
  const int grain = few_grain(p.makes), n_grains = share.n_tiles / grain;
  const int first = n_grains * share.slice / p.n_slices * grain,
            end = n_grains * (share.slice + 1) / p.n_slices * grain;
  if (p.is_cluster)
    cluster_barrier();
  else
    wait_for_range(p.arrived + share.range, share.slice, p.n_slices);
  LB_UNROLL_BY(1)
  for (int i = warp(); i < (end - first) * kEights; i += kFewWarps) {
    const f32x4 sums = sum_few_pieces<kRows>(p, share, first + i / kEights, i % kEights);
    if (p.makes != FewMakes::kSums) store(few_sums_of<kRows>(p, i / kEights, i % kEights), sums);
  }
  if (p.makes == FewMakes::kSums) return;
  block_barrier();
  LB_UNROLL_BY(1)
  for (int i = warp(); i < (end - first) / grain * kEights; i += kFewWarps)
    make_few<kRows>(p, share, first, i / kEights * grain, i % kEights);
}

}  // namespace lb::gpu
