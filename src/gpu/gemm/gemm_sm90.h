// The body of the wgmma GEMM for prompts on sm_90: y[rows, n_out] = x[rows, n_in] w[n_out, n_in]^T (+ add).
//
// Persistent blocks, one per SM, compute whole tiles first, then a share of the remaining tiles (shape.h). Two consumer
// warpgroups compute 16 or 32 outputs per warp for all rows of a tile. Weights are operand A: they go from shared
// memory through registers, where they become 16-bit numbers. x is operand B, which the matrix units read from shared
// memory. A producer warpgroup fills the ring. It copies weights asynchronously, because these copies would stall
// consumers, and x by bulk copies, which the tiled x16 allows (shape.h). The warpgroups synchronise only through the
// ring's barriers. The next weights are expanded while the previous wgmma runs. Bound: arithmetic; a tile's weights are
// expanded once, 3 instructions per code. Notebook: docs/kernels/gemm.md.
#pragma once

#include "gpu/activation.h"
#include "gpu/gemm/weights_sm90.h"
#include "transfer.h"

namespace lb::gpu {

inline constexpr int kProducerThreads = kWarpgroupThreads - kGemmThreads;
inline constexpr int kSteps = 2;  // wgmma steps of 16 values in flight

// A row of a weight matrix in planes.
struct WeightRow {
  const uint8_t* w;
  int out;
};

// Cursor over a block's units: whole tiles, n_blocks apart, then its share of the units of the shared tiles. Constant
// indices keep the parameters in constant memory. If gated, a tile has the same outputs of the two matrices of the
// group, in turns of 16: a warp's first fragments are a gate, its second ones the factor of that gate.
template <bool kIsGated>
struct WarpgroupCursor {
  const uint8_t *w, *up;  // up: of a gated tile
  int product, n_out, first_out, first_row, tile, chunk;
  int n_units, first_shared;  // units of the block; first unit of its share

  LB_DEVICE explicit WarpgroupCursor(const Gemm& p) {
    int out_tiles = p.first_tile[1];
    LB_UNROLL
    for (int i = 2; i <= kMaxProducts; ++i)
      if (i <= p.group.n) out_tiles = p.first_tile[i];
    const long n_shared = long(out_tiles * p.n_row_tiles - p.n_whole_tiles) * p.n_chunks;
    first_shared = int(n_shared * block_id() / n_blocks());
    n_units = int(n_shared * (block_id() + 1) / n_blocks()) - first_shared;
    if (block_id() < p.n_whole_tiles) {
      n_units += ((p.n_whole_tiles - 1 - block_id()) / n_blocks() + 1) * p.n_chunks;
      tile = block_id();
      chunk = 0;
    } else {
      enter_shared(p);
    }
    find(p);
  }
  // The weights of row i of the tile. Outputs beyond the last repeat the last.
  LB_DEVICE WeightRow weight_row(int i) const {
    if constexpr (kIsGated) return {i / 16 % 2 == 0 ? w : up, min(first_out + i / 32 * 16 + i % 16, n_out - 1)};
    return {w, min(first_out + i, n_out - 1)};
  }
  // Advances. Returns whether the next unit is in another tile.
  LB_DEVICE bool next(const Gemm& p) {
    if (++chunk < p.n_chunks) return false;
    chunk = 0;
    if (tile >= p.n_whole_tiles)
      ++tile;
    else if (tile + n_blocks() < p.n_whole_tiles)
      tile += n_blocks();
    else
      enter_shared(p);
    find(p);
    return true;
  }

 private:
  LB_DEVICE void enter_shared(const Gemm& p) {
    tile = p.n_whole_tiles + first_shared / p.n_chunks;
    chunk = first_shared % p.n_chunks;
  }
  LB_DEVICE void find(const Gemm& p) {
    const int out_tile = tile / p.n_row_tiles;
    first_row = (tile - out_tile * p.n_row_tiles) * p.tile_rows;
    const void* weights = p.group.products[0].w;
    n_out = p.group.products[0].n_out;
    int first = product = 0;
    LB_UNROLL
    for (int i = 1; i < kMaxProducts; ++i)
      if (!kIsGated && i < p.group.n && out_tile >= p.first_tile[i]) {
        weights = p.group.products[i].w;
        n_out = p.group.products[i].n_out;
        first = p.first_tile[i];
        product = i;
      }
    w = static_cast<const uint8_t*>(weights);
    up = static_cast<const uint8_t*>(p.group.products[1].w);
    first_out = (out_tile - first) * p.tile_outs;
  }
};

template <class Weights_, int kTileRows_, int kFrags_, bool kIsGated_ = false>
struct WarpgroupTile {
  static_assert(!kIsGated_ || kFrags_ == 2);
  using Weights = Weights_;
  using Cursor = WarpgroupCursor<kIsGated_>;
  using T = typename Weights::Value;
  using Scales = typename Weights::template Scales<kFrags_>;
  static constexpr DType kType = Weights::kType;
  static constexpr bool kIsGated = kIsGated_;
  static constexpr int kTileRows = kTileRows_, kFrags = kFrags_, kOuts = kGemmWarps * 16 * kFrags;
  static constexpr int kValues = warpgroup_values(kType), kStages = warpgroup_stages(kType, kTileRows, kOuts);
  static constexpr int kXBytes = kTileRows * warpgroup_x_row(kType),
                       kXScaleBytes = kTileRows * warpgroup_scale_row(kType);
  static constexpr int kWeightBytes = kOuts * gemm_code_row(kType, kValues);
};

// Layout of shared memory.
template <class Tile>
struct WarpgroupMemory {
  uint8_t *x, *weights, *x_scales;  // [kStages, kXBytes], [kStages, kWeightBytes], [kStages, kXScaleBytes]
  uint8_t* warps;                   // [kGemmWarps, kWarpgroupWarpBytes]
  CountedBarrier *full, *empty;     // [kStages]: full, weights and x have arrived; empty, all consumers have read them

  LB_DEVICE WarpgroupMemory() {
    uint8_t* begin = dynamic_shared<uint8_t>();
    x = begin + -reinterpret_cast<uintptr_t>(begin) % kTileAlignment;
    weights = x + Tile::kStages * Tile::kXBytes;
    x_scales = weights + Tile::kStages * Tile::kWeightBytes;
    warps = x_scales + Tile::kStages * Tile::kXScaleBytes;
    full = reinterpret_cast<CountedBarrier*>(warps + kGemmWarps * kWarpgroupWarpBytes);
    empty = full + Tile::kStages;
  }
};

// A position in the ring, with the phase parity of its barriers.
template <int kStages>
struct RingSlot {
  int slot = 0, parity = 0;
  LB_DEVICE void next() {
    if (++slot < kStages) return;
    slot = 0;
    parity ^= 1;
  }
};

// Called by one thread. In x16, 128 bytes of all rows of a tile are contiguous, and so are their scales.
template <class Tile>
LB_DEVICE void copy_x(const Gemm& p, const typename Tile::Cursor& at, uint8_t* stage, uint8_t* scales,
                      CountedBarrier* full) {
  constexpr int kParts = Tile::kXBytes / (Tile::kTileRows * kTileRowBytes);
  const int n_rows = padded_rows(p.group.products[0].rows), n_copied = min(Tile::kTileRows, n_rows - at.first_row);
  const int bytes = n_copied * kTileRowBytes, scale_bytes = n_copied * warpgroup_scale_row(Tile::kType);
  const auto* from = static_cast<const uint8_t*>(p.x16);
  barrier_expect(full, kParts * bytes + scale_bytes);
  LB_UNROLL
  for (int part = 0; part < kParts; ++part) {
    const long row = long(at.chunk * kParts + part) * n_rows + at.first_row;
    copy_bulk(stage + part * Tile::kTileRows * kTileRowBytes, from + row * kTileRowBytes, bytes, full);
  }
  if constexpr (Tile::kXScaleBytes > 0) {
    const LinearGroup& group = p.group;
    const long row = long(at.chunk) * n_rows + at.first_row;
    copy_bulk(scales, from + fp8_x_scales_at(group.products[0].rows, group.products[0].n_in) + row * sizeof(float),
              scale_bytes, full);
  }
}

// Copies one plane's codes of a tile for a chunk. A thread copies one 16-byte piece of every kStep-th row. Pieces
// beyond the end of a row are zero.
template <class Tile, int kPlane>
LB_DEVICE void copy_plane(const Gemm& p, const typename Tile::Cursor& at, uint8_t* to) {
  constexpr int kBytes = gemm_code_bytes(Tile::kType, kPlane, Tile::kValues), kStride = gemm_stride(kBytes);
  constexpr int kPieces = kBytes / 16, kStep = kProducerThreads / kPieces;
  static_assert(kProducerThreads % kPieces == 0 && Tile::kOuts % kStep == 0);
  constexpr bool kIsWhole = quant::plane_format(Tile::kType).block_values % Tile::kValues == 0;
  const quant::PlaneLayout layout = quant::plane_layout(Tile::kType, at.n_out, p.group.products[0].n_in);
  const int row = thread_id() % kProducerThreads / kPieces, piece = thread_id() % kPieces;
  const uint32_t byte = at.chunk * kBytes + piece * 16, row_bytes = uint32_t(layout.row_bytes[kPlane]);
  const uint64_t plane = layout.offset[kPlane] + byte;
  to += row * kStride + piece * 16;
  const auto copy_row = [&](int i) {
    const WeightRow weights = at.weight_row(row + i);
    const uint8_t* from = weights.w + plane + uint64_t(uint32_t(weights.out)) * row_bytes;
    if constexpr (kIsWhole)
      copy_async<16>(to + i * kStride, from);
    else
      copy_async_or_zero<16>(to + i * kStride, from, byte < row_bytes);
  };
  if constexpr (Tile::Weights::kIsFp8 || Tile::kIsGated) {  // more addresses at a time would spill
    LB_UNROLL_BY(4)
    for (int i = 0; i < Tile::kOuts; i += kStep) copy_row(i);
  } else {
    LB_UNROLL
    for (int i = 0; i < Tile::kOuts; i += kStep) copy_row(i);
  }
}
template <class Tile>
LB_DEVICE void copy_weights(const Gemm& p, const typename Tile::Cursor& at, uint8_t* stage) {
  constexpr int kRowBytes = gemm_stride(gemm_code_bytes(Tile::kType, 0, Tile::kValues));
  copy_plane<Tile, 0>(p, at, stage);
  if constexpr (gemm_code_bytes(Tile::kType, 1, Tile::kValues) > 0)
    copy_plane<Tile, 1>(p, at, stage + Tile::kOuts * kRowBytes);
}

// The producer warpgroup; it runs ahead as far as the ring has room.
template <class Tile>
LB_DEVICE void produce(const Gemm& p, typename Tile::Cursor at, const WarpgroupMemory<Tile>& memory) {
  RingSlot<Tile::kStages> ring;
  for (int unit = 0; unit < at.n_units; ++unit) {
    barrier_wait(memory.empty + ring.slot, ring.parity ^ 1);
    copy_weights<Tile>(p, at, memory.weights + ring.slot * Tile::kWeightBytes);
    copy_arrive(memory.full + ring.slot);
    if (unit == 0) wait_for_previous();  // the previous kernel writes x, never weights
    if (thread_id() == kGemmThreads)
      copy_x<Tile>(p, at, memory.x + ring.slot * Tile::kXBytes, memory.x_scales + ring.slot * Tile::kXScaleBytes,
                   memory.full + ring.slot);
    at.next(p);
    ring.next();
  }
}

// Destination of a tile's sums: y, or the block's partial sums.
struct TileDestination {
  const float* x_scales;  // of the tile's rows, or null
  int last_scale;         // index of the last row's
  const float* add;
  float* to;
  int row_outs, n_outs, n_rows;  // values between rows; outputs and rows to store
};
template <class Tile>
LB_DEVICE TileDestination tile_destination(const Gemm& p, const typename Tile::Cursor& at, bool is_complete,
                                           bool is_last) {
  const int rows = p.group.products[0].rows, last = rows - 1 - at.first_row;
  const float* x_scales = nullptr;
  if constexpr (Tile::Weights::kHasRowScales)
    x_scales = reinterpret_cast<const float*>(static_cast<const f16*>(p.x16) +
                                              f16_x_scales_at(rows, p.group.products[0].n_in)) +
               at.first_row;
  if (!is_complete) {
    const long slot = 2l * block_id() + is_last;
    return {x_scales,    last,        nullptr,        p.partials + slot * Tile::kTileRows * Tile::kOuts,
            Tile::kOuts, Tile::kOuts, Tile::kTileRows};
  }
  const float* add = p.group.products[0].add;
  float* y = p.group.products[0].y;
  LB_UNROLL
  for (int i = 1; i < kMaxProducts; ++i)
    if (at.product == i) {
      add = p.group.products[i].add;
      y = p.group.products[i].y;
    }
  const long corner = long(at.first_row) * at.n_out + at.first_out;
  return {x_scales,
          last,
          add != nullptr ? add + corner : nullptr,
          y + corner,
          at.n_out,
          at.n_out - at.first_out,
          min(rows - at.first_row, Tile::kTileRows)};
}

// Stores four neighbouring outputs of a row, plus `add`.
LB_DEVICE void write_four(const TileDestination& destination, bool is_aligned, int row, int out, f32x4 sum) {
  const long at = long(row) * destination.row_outs + out;
  if (is_aligned && out + 4 <= destination.n_outs) {
    if (destination.add != nullptr) {
      const f32x4 before = load<f32x4>(destination.add + at);
      LB_UNROLL
      for (int j = 0; j < 4; ++j) sum[j] += before[j];
    }
    store(destination.to + at, sum);
  } else {
    LB_UNROLL
    for (int j = 0; j < 4; ++j)
      if (out + j < destination.n_outs)
        destination.to[at + j] = destination.add != nullptr ? sum[j] + destination.add[at + j] : sum[j];
  }
}

// Stores sums through the warp's shared memory, so that a lane stores four neighbouring outputs of a row. If gated,
// stores silu(gate) * up instead of both.
template <class Tile>
LB_DEVICE void write_sums(FragmentC (&sums)[Tile::kFrags][Tile::kTileRows / 16], const TileDestination& destination,
                          float* warp_memory) {
  constexpr int kStride = 20;  // 16 plus padding, so that neighbouring rows fall in different banks
  static_assert(16 * kStride * sizeof(float) <= kWarpgroupWarpBytes);
  const uintptr_t bits = reinterpret_cast<uintptr_t>(destination.to) | reinterpret_cast<uintptr_t>(destination.add);
  const bool is_aligned = (bits | destination.row_outs * sizeof(float)) % 16 == 0;
  float scales[Tile::kTileRows / 8];  // of the lane's rows, all loaded before the first store
  LB_UNROLL
  for (int i = 0; i < Tile::kTileRows / 8; ++i)
    scales[i] = Tile::Weights::kHasRowScales
                    ? load<float>(destination.x_scales + min(8 * i + lane() / 4, destination.last_scale))
                    : 1.0f;
  // Calls take(row, sum) for each four outputs of the lane in 16 x 16 sums.
  const auto for_fours = [&](FragmentC& fragment, int subtile, auto&& take) {
    warp_barrier();
    for_each(fragment, [&](int i, int row, float& sum) { store(warp_memory + row * kStride + i, sum); });
    warp_barrier();
    LB_UNROLL
    for (int i = 0; i < 16; i += 8) {
      const int subtile_row = i + lane() / 4;
      f32x4 sum = load<f32x4>(warp_memory + subtile_row * kStride + lane() % 4 * 4);
      LB_UNROLL
      for (int j = 0; j < 4; ++j) sum[j] *= scales[2 * subtile + i / 8];
      take(subtile * 16 + subtile_row, sum);
    }
  };
  constexpr int kOutFrags = Tile::kIsGated ? 1 : Tile::kFrags;
  LB_UNROLL
  for (int frag = 0; frag < kOutFrags; ++frag) {
    const int out = (warp() * kOutFrags + frag) * 16 + lane() % 4 * 4;
    LB_UNROLL
    for (int subtile = 0; subtile < Tile::kTileRows / 16; ++subtile) {
      const auto write = [&](int row, const f32x4& sum) {
        if (row < destination.n_rows) write_four(destination, is_aligned, row, out, sum);
      };
      if constexpr (Tile::kIsGated) {
        f32x4 gates[2];
        int i = 0;
        for_fours(sums[0][subtile], subtile, [&](int, const f32x4& gate) { gates[i++] = gate; });
        i = 0;
        for_fours(sums[1][subtile], subtile, [&](int row, f32x4 up) {
          LB_UNROLL
          for (int j = 0; j < 4; ++j) up[j] *= silu(gates[i][j]);
          ++i;
          write(row, up);
        });
      } else {
        for_fours(sums[frag][subtile], subtile, write);
      }
    }
  }
}

// Multiplies a chunk into the sums. Calls release() once the previous chunk's wgmma have ended.
template <class Tile, class Release>
LB_DEVICE void multiply_chunk(FragmentC (&sums)[Tile::kFrags][Tile::kTileRows / 16],
                              FragmentA<typename Tile::T> (&a)[kSteps][Tile::kFrags], const uint8_t* weights,
                              const uint8_t* x, const typename Tile::Scales& scales, Release&& release) {
  using T = typename Tile::T;
  LB_UNROLL
  for (int block = 0; block < Tile::kValues / kRoundBlock; ++block) {
    const typename Tile::Weights::template Operands<Tile::kFrags> operands(weights, scales, block);
    LB_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int step = 2 * block + half;
      operands.half(a[step % kSteps], half);
      group_begin();
      const auto rows = rows_of(reinterpret_cast<const T*>(x), Tile::kTileRows, 0, step * 16);
      LB_UNROLL
      for (int i = 0; i < Tile::kFrags; ++i) group_multiply<Tile::kTileRows, false>(sums[i], a[step % kSteps][i], rows);
      group_commit();
      group_wait<kSteps - 1>();  // these wgmma read registers that the next fragments overwrite
      if (step == kSteps - 2) release();
    }
  }
}

// Multiplies a chunk of fp8 numbers and adds the scaled sums, in fp32. While a warpgroup adds, the matrix units have
// the products of the other one.
template <class Tile>
LB_DEVICE void multiply_fp8_chunk(FragmentC (&sums)[Tile::kFrags][Tile::kTileRows / 16], const uint8_t* weights,
                                  const uint8_t* x, const float* x_scales, const typename Tile::Scales& scales) {
  using T = typename Tile::T;
  constexpr int kDepth = 32, kSteps = Tile::kValues / kDepth;
  LB_UNROLL
  for (int frag = 0; frag < Tile::kFrags; ++frag) {
    const ChunkRows<Tile::kType> rows(weights, Tile::kOuts, (opaque(warp()) * Tile::kFrags + frag) * 16);
    FragmentA<T> a[kSteps];
    LB_UNROLL
    for (int step = 0; step < kSteps; ++step)
      load_shared(a[step], reinterpret_cast<const T*>(rows.first) + step * kDepth, rows.kStride0);
    FragmentC chunk[Tile::kTileRows / 16];
    group_begin();
    LB_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      const auto b = rows_of(reinterpret_cast<const T*>(x), Tile::kTileRows, 0, step * kDepth);
      if (step == 0)
        group_multiply<Tile::kTileRows, true>(chunk, a[step], b);
      else
        group_multiply<Tile::kTileRows, false>(chunk, a[step], b);
    }
    group_commit();
    group_wait<0>(chunk);
    const float* own_scales = x_scales + opaque(lane()) % 4 * 2;  // recomputed for the same reason
    OperandRows<float> w;                                         // loaded late, when the registers of A are free
    load(w, scales.unpacked + frag * 16, int(sizeof(float)));
    LB_UNROLL
    for (int i = 0; i < Tile::kTileRows / 8; ++i) {
      const f32x2 scale = load<f32x2>(own_scales + 8 * i);
      LB_UNROLL
      for (int j = 0; j < 4; ++j) {  // two outputs of two rows of x, in the layout of matrix.h
        float& sum = sums[frag][i / 2].v[i % 2 * 4 + j];
        sum = fma(chunk[i / 2].v[i % 2 * 4 + j] * scale[j % 2], w.v[j / 2], sum);
      }
    }
  }
}

// The consumer warpgroups.
template <class Tile>
LB_DEVICE void consume(const Gemm& p, typename Tile::Cursor at, const WarpgroupMemory<Tile>& memory) {
  uint8_t* warp_memory = memory.warps + warp() * kWarpgroupWarpBytes;
  const int n_units = at.n_units;
  typename Tile::Scales scales(warp_memory);
  scales.find(p, at);
  scales.read(at.chunk);
  dependents_may_launch();
  wait_for_previous();

  RingSlot<Tile::kStages> ring;
  for (int unit = 0; unit < n_units;) {
    FragmentC sums[Tile::kFrags][Tile::kTileRows / 16];
    FragmentA<typename Tile::T> a[kSteps][Tile::kFrags];
    LB_UNROLL
    for (int i = 0; i < Tile::kFrags * Tile::kTileRows / 16; ++i) fill(sums[i % Tile::kFrags][i / Tile::kFrags], 0);
    const typename Tile::Cursor tile_cursor = at;
    const int n_tile_units = min(n_units - unit, p.n_chunks - at.chunk), end = unit + n_tile_units;
    int in_use = -1;  // slot whose x the wgmma in flight may still read
    const auto release = [&] {
      if (in_use >= 0) barrier_arrive(memory.empty + in_use);
    };
    for (; unit < end; ++unit) {
      warp_barrier();  // all lanes have read the previous scales
      scales.unpack();
      if (unit + 1 < n_units) {
        if (at.next(p)) scales.find(p, at);
        scales.read(at.chunk);
      }
      warp_barrier();
      barrier_wait(memory.full + ring.slot, ring.parity);
      const uint8_t* weights = memory.weights + ring.slot * Tile::kWeightBytes;
      const uint8_t* x = memory.x + ring.slot * Tile::kXBytes;
      if constexpr (Tile::Weights::kIsFp8) {
        const uint8_t* x_scales = memory.x_scales + ring.slot * Tile::kXScaleBytes;
        multiply_fp8_chunk<Tile>(sums, weights, x, reinterpret_cast<const float*>(x_scales), scales);
        barrier_arrive(memory.empty + ring.slot);
      } else {
        multiply_chunk<Tile>(sums, a, weights, x, scales, release);
        in_use = ring.slot;
      }
      ring.next();
    }
    LB_UNROLL
    for (int i = 0; i < Tile::kFrags; ++i) group_wait<0>(sums[i]);
    release();
    const TileDestination destination =
        tile_destination<Tile>(p, tile_cursor, n_tile_units == p.n_chunks, tile_cursor.chunk == 0);
    write_sums<Tile>(sums, destination, reinterpret_cast<float*>(warp_memory));
  }
}

template <class Tile>
LB_DEVICE void gemm_sm90(const Gemm& p) {
  const WarpgroupMemory<Tile> memory;
  if (thread_id() == 0)
    for (int i = 0; i < Tile::kStages; ++i) {
      barrier_init(memory.full + i, kProducerThreads + 1);
      barrier_init(memory.empty + i, kGemmThreads);  // every consumer thread arrives
    }
  fence_async_proxy();
  block_barrier();
  const typename Tile::Cursor at(p);
  if (shuffle(warp(), 0) >= kGemmWarps) {
    dealloc_registers<40>();
    produce<Tile>(p, at, memory);
  } else {
    alloc_registers<232>();
    consume<Tile>(p, at, memory);
  }
}

}  // namespace lb::gpu
