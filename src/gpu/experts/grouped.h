// Grouped products of experts: the loop of gemm.h over tiles of one expert each (GroupChoices). A block multiplies
// whole tiles, chunk by chunk, so a row's sums have one order whatever other rows there are and whatever the tile's
// size. Bound: arithmetic for prompts; the experts' bytes if few positions share an expert.
#pragma once

#include "gpu/experts/act.h"
#include "gpu/experts/shape.h"
#include "gpu/gemm/gemm.h"
#include "gpu/narrow.h"
#include "gpu/round_block.h"

namespace lb::gpu {

// Cursor over units. kIsGateUp: warps of the first half have outputs of gate, the others the same outputs of up.
template <bool kIsGateUp>
struct ExpertCursor {
  const ExpertGemm* all;
  const void* w;
  int n_out, first_out, tile, chunk;
  ExpertTile rows;

  LB_DEVICE ExpertCursor(const ExpertGemm& p, int tile_, int chunk_) : all(&p), tile(tile_), chunk(chunk_) { find(); }
  LB_DEVICE void next(const Gemm& p) {
    if (++chunk < p.n_chunks) return;
    chunk = 0;
    ++tile;
    find();
  }
  LB_DEVICE int x_row(const Gemm&, int row) const {
    const int position = rows.first + min(row, rows.n - 1);
    return kIsGateUp ? all->x_rows[position] : position;
  }
  template <int kTileRows>
  LB_DEVICE int used_rows() const {
    return rows.n;
  }
  LB_DEVICE int tile_out() const { return tile % all->n_out_tiles * (kIsGateUp ? kActTileOuts : 2 * kActTileOuts); }

 private:
  LB_DEVICE void find() {
    rows = all->tiles[tile / all->n_out_tiles];
    const bool is_up = kIsGateUp && warp() >= kGemmWarps / 2;
    w = is_up ? all->w[1] : all->w[0];
    const int per_expert = is_up ? all->rows[1].per_expert : all->rows[0].per_expert;
    n_out = all->n_held * per_expert;
    first_out = rows.slot * per_expert + (is_up ? all->rows[1].first - kActTileOuts : all->rows[0].first) + tile_out();
  }
};

// act() of a tile: the sums of gate and up meet in the warps' memories, 16 rows at a time.
template <class Product>
LB_DEVICE void store_act(const ExpertGemm& p, const ExpertTile& tile, int first_out, Product& product, float* memory) {
  constexpr int kRows = 16, kPuts = kRows / Product::kSubtileRows, kFloats = kGemmWarpBytes / int(sizeof(float));
  static_assert(kRows * kActTileOuts == 4 * kGemmThreads && kRows * 16 == kFloats && Product::kFrags == 1);
  const int row = thread_id() / 16, column = thread_id() % 16 * 4, out = first_out + column;
  const float* gate = memory - warp() * kFloats + column / 16 * kFloats + row * 16 + column % 16;
  const float* up = gate + kGemmWarps / 2 * kFloats;
  LB_UNROLL
  for (int first = 0; first < Product::kTileRows; first += kRows) {
    block_barrier();
    LB_UNROLL
    for (int i = 0; i < kPuts; ++i)
      product.put(first / Product::kSubtileRows + i, memory + i * Product::kSubtileRows * 16);
    block_barrier();
    const auto gates = load<f32x4>(gate), ups = load<f32x4>(up);
    f32x4 act = {};
    LB_UNROLL
    for (int j = 0; j < 4; ++j) {
      if (out + j >= p.n_out) break;
      float g = gates[j], u = ups[j];
      const long bias = long(tile.expert) * p.n_out + out + j;
      if (p.rows[0].bias != nullptr) g += p.rows[0].bias[bias];
      if (p.rows[1].bias != nullptr) u += p.rows[1].bias[bias];
      act[j] = expert_act(g, u, p.limit, p.is_gelu);
    }
    const bool is_inside = first + row < tile.n;
    const long position = tile.first + first + row;
    if (p.rounded.high != nullptr) {
      round_four(p.rounded, position * p.n_out + out, act, is_inside && out < p.n_out);
    } else if (p.values != nullptr) {
      LB_UNROLL
      for (int j = 0; j < 4; ++j)
        if (is_inside && out + j < p.n_out) p.values[position * p.n_out + out + j] = act[j];
    } else if (is_inside) {  // zeros beyond the last output, up to whole chunks
      uint16_t* const sixteen = p.halves + position * x16_values(p.n_out) + out / 16 * 16;
      LB_UNROLL
      for (int j = 0; j < 4; j += 2) {
        const Vec<uint16_t, 2> pair = {narrow(act[j], p.half_type), narrow(act[j + 1], p.half_type)};
        const int k = out % 16 + j;
        store(sixteen + (p.is_permuted ? expanded_index(k) : k), pair);
      }
    }
  }
}

// Destination of down's sums: a row per choice.
struct ChoiceSums {
  static constexpr const float* add = nullptr;
  float* to;
  const int32_t* choices;
  int row_outs, n_outs, n_rows;

  LB_DEVICE long at(int row, int out) const { return long(choices[row]) * row_outs + out; }
};

// Consecutive tiles have the same rows and different outputs.
template <bool kIsGateUp>
struct ExpertTiles {
  using Cursor = ExpertCursor<kIsGateUp>;
  static constexpr bool kAreKnown = false;
  const ExpertGemm& all;

  LB_DEVICE int first_unit(const Gemm& p, int block) const {
    return int(long(*all.n_tiles) * all.n_out_tiles * block / n_blocks()) * p.n_chunks;
  }
  LB_DEVICE Cursor cursor(const Gemm&, int tile, int chunk) const { return {all, tile, chunk}; }
  template <class Product>
  LB_DEVICE void store(const Gemm&, Product& product, int tile, bool, bool, float* warp_memory) const {
    const Cursor at(all, tile, 0);
    if constexpr (kIsGateUp)
      store_act(all, at.rows, at.tile_out(), product, warp_memory);
    else
      write_sums(product,
                 ChoiceSums{all.sums + at.tile_out(), all.choices + at.rows.first, all.n_out, all.n_out - at.tile_out(),
                            at.rows.n},
                 warp_memory);
  }
};

template <class Product, bool kIsGateUp>
LB_DEVICE void expert_gemm(const ExpertGemm& p) {
  gemm<Product>(p.gemm, ExpertTiles<kIsGateUp>{p});
}

}  // namespace lb::gpu
