// The body of the GEMMs without wgmma: y[rows, n_out] = x[rows, n_in] w[n_out, n_in]^T (+ add).
//
// A block goes through its units (shape.h). Asynchronous copies bring chunks of weights and x into a ring of n_stages
// stages in shared memory, n_stages - 1 chunks ahead. A warp computes 16 kFrags outputs and copies their weights
// itself; all warps copy x. Scales go through registers, one chunk ahead, and are decoded into shared memory.
// products.h multiplies a chunk, and formats.h reads a weight type. The order of additions depends only on shape and
// launch. `Tiles` says which tiles a block computes and where their sums go: LinearTiles here, ExpertTiles in
// experts/grouped.h.
// Bound: bandwidth for 2 to 64 rows, the weights once per tile of rows; arithmetic for more rows. Notebook:
// docs/kernels/gemm.md.
#pragma once

#include "gpu/gemm/products.h"

namespace lb::gpu {

// Cursor over units. Constant indices keep the parameters in constant memory.
struct GemmCursor {
  const void* w;
  int n_out, first_out, first_row, tile, chunk;

  LB_DEVICE GemmCursor(const Gemm& p, int tile_, int chunk_) : tile(tile_), chunk(chunk_) { find(p); }
  LB_DEVICE void next(const Gemm& p) {
    if (++chunk < p.n_chunks) return;
    chunk = 0;
    ++tile;
    find(p);
  }
  // Row of x for a row of the tile. Rows beyond the last repeat the last.
  LB_DEVICE int x_row(const Gemm& p, int row) const { return min(first_row + row, p.group.products[0].rows - 1); }
  // Rows to compute of the tile's kTileRows.
  template <int kTileRows>
  LB_DEVICE static constexpr int used_rows() {
    return kTileRows;
  }

 private:
  LB_DEVICE void find(const Gemm& p) {
    const int out_tile = tile / p.n_row_tiles;
    first_row = (tile - out_tile * p.n_row_tiles) * p.tile_rows;
    w = p.group.products[0].w;
    n_out = p.group.products[0].n_out;
    int first = 0;
    LB_UNROLL
    for (int i = 1; i < kMaxProducts; ++i)
      if (i < p.group.n && out_tile >= p.first_tile[i]) {
        w = p.group.products[i].w;
        n_out = p.group.products[i].n_out;
        first = p.first_tile[i];
      }
    first_out = (out_tile - first) * p.tile_outs;
  }
};

struct GemmOutput {
  const float* add;
  float* y;
};
LB_DEVICE GemmOutput gemm_output(const Gemm& p, int tile) {
  const int out_tile = tile / p.n_row_tiles;
  GemmOutput out = {p.group.products[0].add, p.group.products[0].y};
  LB_UNROLL
  for (int i = 1; i < kMaxProducts; ++i)
    if (i < p.group.n && out_tile >= p.first_tile[i]) out = {p.group.products[i].add, p.group.products[i].y};
  return out;
}

LB_DEVICE int gemm_units(const Gemm& p) {
  int out_tiles = p.first_tile[1];
  LB_UNROLL
  for (int i = 2; i <= kMaxProducts; ++i)
    if (i <= p.group.n) out_tiles = p.first_tile[i];
  return out_tiles * p.n_row_tiles * p.n_chunks;
}

// Copies one plane's codes of this warp's outputs for a chunk. A lane copies one piece of every (32 / kPieces)-th row.
// Pieces beyond the end of a row are zero. Outputs beyond the last repeat the last.
template <int kRows, int kBytes, int kPieceBytes, class Cursor>
LB_DEVICE void copy_codes(const Cursor& at, const uint8_t* plane, int row_bytes, uint8_t* to) {
  constexpr int kPieces = kBytes / kPieceBytes, kStep = 32 / kPieces;
  static_assert(32 % kPieces == 0);
  const int thread = opaque(thread_id()), row_of_warp = thread % 32 / kPieces;
  if (kRows < kStep && row_of_warp >= kRows) return;
  const int row = thread / 32 * kRows + row_of_warp, piece = thread % kPieces,
            byte = at.chunk * kBytes + piece * kPieceBytes;
  const bool is_inside = byte < row_bytes;
  plane += byte;
  to += row * gemm_stride(kBytes) + piece * kPieceBytes;
  LB_UNROLL
  for (int i = 0; i < kRows; i += kStep) {
    const long out = min(at.first_out + row + i, at.n_out - 1);
    if (is_inside)
      copy_async<kPieceBytes>(to + i * gemm_stride(kBytes), plane + out * row_bytes);
    else
      store(to + i * gemm_stride(kBytes), Vec<uint32_t, kPieceBytes / 4>{});
  }
}

template <class Product, class Cursor>
LB_DEVICE void copy_weights(const Gemm& p, const Cursor& at, uint8_t* stage) {
  constexpr int kRows = 16 * Product::kFrags;
  constexpr int kBytes0 = gemm_code_bytes(Product::kType, 0, Product::kValues);
  constexpr int kBytes1 = gemm_code_bytes(Product::kType, 1, Product::kValues);
  const quant::PlaneLayout layout = quant::plane_layout(Product::kType, at.n_out, p.group.products[0].n_in);
  const uint8_t* planes = static_cast<const uint8_t*>(at.w);
  copy_codes<kRows, kBytes0, 16>(at, planes, int(layout.row_bytes[0]), stage);
  if constexpr (kBytes1 > 0) {
    // Rows of fifth bits of blocks of 32 are multiples of 4 bytes.
    constexpr int kPieceBytes = quant::plane_format(Product::kType).part_bytes[1] < 16 ? 4 : 16;
    copy_codes<kRows, kBytes1, kPieceBytes>(at, planes + layout.offset[1], int(layout.row_bytes[1]),
                                            stage + kGemmWarps * kRows * gemm_stride(kBytes0));
  }
}

// Destination of a tile's sums: y, or the block's partial sums.
struct SumsDestination {
  const float* add;
  float* to;
  int row_outs, n_outs, n_rows;  // values between rows; outputs and rows to store

  LB_DEVICE long at(int row, int out) const { return long(row) * row_outs + out; }

  template <int kOuts>
  LB_DEVICE static SumsDestination partial(const Gemm& p, bool is_last_of_block) {
    return {nullptr, p.partials + (2l * block_id() + is_last_of_block) * p.tile_rows * kOuts, kOuts, kOuts,
            p.tile_rows};
  }
  LB_DEVICE static SumsDestination complete(const Gemm& p, int tile) {
    const GemmCursor at(p, tile, 0);
    const GemmOutput output = gemm_output(p, tile);
    const long corner = long(at.first_row) * at.n_out + at.first_out;
    return {output.add != nullptr ? output.add + corner : nullptr, output.y + corner, at.n_out, at.n_out - at.first_out,
            min(p.group.products[0].rows - at.first_row, p.tile_rows)};
  }
};

// Stores sums through the warp's shared memory, so that a row's 16 outputs are stored together.
template <class Product, class Destination>
LB_DEVICE void write_sums(Product& product, const Destination& sums, float* warp_memory) {
  constexpr int kRows = Product::kSubtileRows, kRowSubtiles = Product::kSubtiles / Product::kFrags;
  LB_UNROLL
  for (int subtile = 0; subtile < Product::kSubtiles; ++subtile) {
    warp_barrier();
    product.put(subtile, warp_memory);
    warp_barrier();
    const int out = (warp() * Product::kFrags + subtile / kRowSubtiles) * 16 + lane() % 16;
    for (int i = lane() / 16; i < kRows; i += 2) {
      const int row = subtile % kRowSubtiles * kRows + i;
      if (out >= sums.n_outs || row >= sums.n_rows) break;
      const long at = sums.at(row, out);
      const float sum = load<float>(warp_memory + i * 16 + lane() % 16);
      sums.to[at] = sums.add != nullptr ? sum + sums.add[at] : sum;
    }
  }
}

// The tiles of a LinearGroup, in units split evenly over the blocks. Known before the previous kernel has ended, so
// weights are loaded before that.
struct LinearTiles {
  using Cursor = GemmCursor;
  static constexpr bool kAreKnown = true;

  LB_DEVICE int first_unit(const Gemm& p, int block) const { return int(long(gemm_units(p)) * block / n_blocks()); }
  LB_DEVICE Cursor cursor(const Gemm& p, int tile, int chunk) const { return {p, tile, chunk}; }
  // Stores the sums of the chunks that this block has of a tile.
  template <class Product>
  LB_DEVICE void store(const Gemm& p, Product& product, int tile, bool has_first, bool has_last,
                       float* warp_memory) const {
    write_sums(product,
               has_first && has_last ? SumsDestination::complete(p, tile)
                                     : SumsDestination::partial<kGemmWarps * 16 * Product::kFrags>(p, has_first),
               warp_memory);
  }
};

template <class Product, class Tiles = LinearTiles>
LB_DEVICE void gemm(const Gemm& p, const Tiles& tiles = {}) {
  constexpr int kOuts = kGemmWarps * 16 * Product::kFrags;
  constexpr int kWeightBytes = kOuts * gemm_code_row(Product::kType, Product::kValues);
  constexpr int kStageBytes = kWeightBytes + Product::kXBytes;
  uint8_t* ring = dynamic_shared<uint8_t>();
  if constexpr (!Tiles::kAreKnown) {
    dependents_may_launch();
    wait_for_previous();
  }
  const int begin = tiles.first_unit(p, block_id()), end = tiles.first_unit(p, block_id() + 1);
  const int n_ahead = p.n_stages - 1;

  const int first_tile = begin / p.n_chunks;
  typename Tiles::Cursor at = tiles.cursor(p, first_tile, begin - first_tile * p.n_chunks), ahead = at;
  for (int i = 0; i < n_ahead && begin + i < end; ++i) {
    copy_weights<Product>(p, ahead, ring + i * kStageBytes);
    ahead.next(p);
  }
  uint8_t* warp_memory = ring + p.n_stages * kStageBytes + warp() * kGemmWarpBytes;
  typename Product::Scales scales(p, at, warp_memory);
  if constexpr (Tiles::kAreKnown) {
    dependents_may_launch();
    wait_for_previous();
  }
  ahead = at;
  for (int i = 0; i < n_ahead; ++i) {
    if (begin + i < end) {
      Product::fetch_x(p, ahead, ring + i * kStageBytes + kWeightBytes);
      ahead.next(p);
    }
    copy_commit();
  }

  Product product;
  int first_chunk = at.chunk, slot = 0;
  for (int unit = begin; unit < end; ++unit) {
    if (p.n_stages == 2)
      copy_wait<0>();
    else if (p.n_stages == 3)
      copy_wait<1>();
    else
      copy_wait<2>();
    block_barrier();  // this chunk has arrived, and all warps have read the previous one
    if (unit + n_ahead < end) {
      uint8_t* stage = ring + (slot == 0 ? n_ahead : slot - 1) * kStageBytes;
      copy_weights<Product>(p, ahead, stage);
      Product::fetch_x(p, ahead, stage + kWeightBytes);
      ahead.next(p);
    }
    copy_commit();
    scales.unpack();
    const int tile = at.tile, chunk = at.chunk, n_rows = at.template used_rows<Product::kTileRows>();
    if (unit + 1 < end) {
      at.next(p);
      scales.read(p, at);
    }
    warp_barrier();
    product.add(ring + slot * kStageBytes, ring + slot * kStageBytes + kWeightBytes, scales.unpacked, n_rows);
    slot = slot == n_ahead ? 0 : slot + 1;
    if (chunk + 1 < p.n_chunks && unit + 1 < end) continue;

    if constexpr (requires { product.finish(p, at); }) product.finish(p, tiles.cursor(p, tile, 0));
    tiles.store(p, product, tile, first_chunk == 0, chunk + 1 == p.n_chunks, reinterpret_cast<float*>(warp_memory));
    first_chunk = 0;
  }
}

}  // namespace lb::gpu
