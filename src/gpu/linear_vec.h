// The body of the mat-vec: y = w x (+ add) for up to four weight matrices of one type and one row of x.
//
// Grid: x blocks share the tiles of kVecTileRows weight rows of all products, each block a run of them, a warp a tile;
// y the rows of x. A lane reads chunk 32 u + lane of each row of the tile. Reading runs one batch ahead of the
// arithmetic, over the ends of tiles too, and the first batch is asked for before the previous kernel has ended:
// weights never depend on it. Every output is one warp's, summed in an order that depends on the shape alone.
// Bound: bandwidth, the bytes of the weights (bytes_of in launch/linear.h); 85 % of the measured ceiling wants about 16
// KB of every SM in flight on an H100 (3.1 TB/s x 0.7 us / 132).
#pragma once

#include "launch/linear_shape.h"
#include "ops/linear.h"
#include "vec_formats.h"

namespace lb::gpu {

// One tile of one product.
template <class Format>
struct VecTile {
  const void* w;
  const float* add;
  float* y;
  int n_out = 0, first_row = 0;

  // `tile` counts through the products from `first` to before `last`; constant indices keep the parameters in place.
  LB_DEVICE VecTile(const LinearGroup& group, int first, int last, int tile) : w(nullptr) {
    LB_UNROLL
    for (int i = 0; i < kMaxProducts; ++i) {
      if (i < first || i >= last || w != nullptr) continue;
      const Linear& op = group.products[i];
      const int tiles = vec_tiles(op.n_out);
      if (tile < tiles) {
        w = op.w;
        n_out = op.n_out;
        first_row = tile * kVecTileRows;
        const long row = long(block_id_y()) * op.n_out;
        add = op.add ? op.add + row : nullptr;
        y = op.y + row;
      }
      tile -= tiles;
    }
  }
};

LB_DEVICE int tiles_of(const LinearGroup& group, int first, int last) {
  int tiles = 0;
  LB_UNROLL
  for (int i = 0; i < kMaxProducts; ++i)
    if (i >= first && i < last) tiles += vec_tiles(group.products[i].n_out);
  return tiles;
}

// The block's share of a group's products, all of this format.
template <class Format>
class VecProducts {
 public:
  static constexpr int kUnroll = Format::kUnroll;

  LB_DEVICE VecProducts(const LinearGroup& group, const VecShare& share)
      : group_(group), first_(share.first), last_(share.last), n_in_(group.products[0].n_in) {
    const int tiles = tiles_of(group, first_, last_);
    begin_ = int(long(tiles) * share.block / share.n_blocks);
    end_ = int(long(tiles) * (share.block + 1) / share.n_blocks);
  }

  // Values [from, from + count) of x: asks for the warp's first batch.
  LB_DEVICE void begin_part(int from, int count) {
    chunk_begin_ = from / Format::kValues;
    chunk_end_ = (from + count + Format::kValues - 1) / Format::kValues;
    next_ = {begin_ + warp(), chunk_begin_};
    if (next_.tile < end_) {
      aim();
      read();
    }
  }

  // The sums of this part; `sums` keeps them between parts, [tiles of the block, kVecTileRows] in shared memory.
  LB_DEVICE void run_part(const typename Format::X& x, float* sums, bool is_first, bool is_last) {
    float total[kVecTileRows] = {};
    while (next_.tile < end_) {
      const Place place = next_;
      Batch batch = batch_;
      next_.chunk += 32 * kUnroll;
      const bool is_tile_end = next_.chunk >= chunk_end_;
      if (is_tile_end) {
        next_ = {place.tile + n_warps(), chunk_begin_};
        if (next_.tile < end_) aim();
      }
      if (next_.tile < end_) read();
      add(batch, place.chunk, x, total);
      if (is_tile_end) {
        finish(place.tile, total, sums, is_first, is_last);
        LB_UNROLL
        for (int r = 0; r < kVecTileRows; ++r) total[r] = 0;
      }
    }
  }

 private:
  struct Place {
    int tile, chunk;
  };
  struct Batch {
    typename Format::Chunk chunks[kUnroll][kVecTileRows];
  };

  LB_DEVICE static int row_of(const VecTile<Format>& tile, int r) { return min(tile.first_row + r, tile.n_out - 1); }

  // Points the rows at the tile to read next.
  LB_DEVICE void aim() {
    const VecTile<Format> tile(group_, first_, last_, next_.tile);
    const quant::PlaneLayout layout = quant::plane_layout(Format::kType, tile.n_out, n_in_);
    LB_UNROLL
    for (int r = 0; r < kVecTileRows; ++r) rows_.row[r] = typename Format::Row(layout, tile.w, size_t(row_of(tile, r)));
  }

  // A lane beyond the end reads nothing and keeps whatever it has: add() leaves it out.
  LB_DEVICE void read() {
    LB_UNROLL
    for (int u = 0; u < kUnroll; ++u) {
      const int chunk = next_.chunk + 32 * u + lane();
      if (chunk < chunk_end_) {
        LB_UNROLL
        for (int r = 0; r < kVecTileRows; ++r) batch_.chunks[u][r] = Format::load(rows_.row[r], chunk);
      }
    }
  }

  LB_DEVICE void add(const Batch& batch, int first_chunk, const typename Format::X& x, float* total) const {
    LB_UNROLL
    for (int u = 0; u < kUnroll; ++u) {
      const int chunk = first_chunk + 32 * u + lane();
      if (chunk < chunk_end_) {
        LB_UNROLL
        for (int r = 0; r < kVecTileRows; ++r) total[r] += Format::dot(batch.chunks[u][r], chunk - chunk_begin_, x);
      }
    }
  }

  LB_DEVICE void finish(int i_tile, const float* total, float* sums, bool is_first, bool is_last) const {
    float mine = 0;  // lane r keeps row r
    LB_UNROLL
    for (int r = 0; r < kVecTileRows; ++r) {
      const float sum = warp_sum(total[r]);
      if (lane() == r) mine = sum;
    }
    if (lane() >= kVecTileRows) return;
    float& kept = sums[(i_tile - begin_) * kVecTileRows + lane()];
    if (!is_first) mine += kept;
    if (!is_last) {
      kept = mine;
      return;
    }
    const VecTile<Format> tile(group_, first_, last_, i_tile);
    const int row = tile.first_row + lane();
    if (row < tile.n_out) tile.y[row] = tile.add ? mine + tile.add[row] : mine;
  }

  struct Rows {
    typename Format::Row row[kVecTileRows];
  };

  const LinearGroup& group_;
  int first_, last_, n_in_;
  int begin_, end_;  // tiles of this block
  int chunk_begin_, chunk_end_;
  Place next_;
  Rows rows_;
  Batch batch_;
};

template <class Format>
LB_DEVICE void linear_vec(const LinearGroup& group, const VecShare& share) {
  using X = typename Format::X;
  const int n_in = group.products[0].n_in;
  const VecParts parts = vec_parts(n_in, X::kIsInt8);
  unsigned char* shared = dynamic_shared<unsigned char>();
  const X x(shared, parts.values);
  float* sums = reinterpret_cast<float*>(shared + parts.stage_bytes);
  const float* row = group.products[0].x + long(block_id_y()) * n_in;
  VecProducts<Format> products(group, share);
  for (int part = 0; part < parts.n_parts; ++part) {
    const int from = part * parts.values, count = min(parts.values, n_in - from);
    products.begin_part(from, count);
    if (part == 0)
      wait_for_previous();
    else
      block_barrier();  // the part before is still being read
    x.stage(row + from, count);
    block_barrier();
    products.run_part(x, sums, part == 0, part == parts.n_parts - 1);
  }
}

}  // namespace lb::gpu
