// The frame of the products of prompts on chips with products of warpgroups: y = x w^T (+ add), tiles of outputs over
// blocks that stay.
//
// Two warpgroups have 16 or 32 outputs a warp and all rows of a tile. Their weights go from a ring in shared memory,
// which each warp fills for itself with asynchronous copies, through registers, where they become 16-bit numbers, into
// the matrix units; there they meet x, which the units read from shared memory themselves. A thread of a third
// warpgroup brings x by bulk copies, as x16 lies in tiles already (launch/linear_batch_shape.h). The warpgroups do not
// wait for each other but through the ring. A step's weights are expanded while the products of the step before run.
// Bound: arithmetic; the weights of a tile are expanded once, 3 instructions a code. docs/kernels/matmul.md.
#pragma once

#include "linear_warpgroup_weights.h"
#include "transfer.h"

namespace lb::gpu {

// Where a unit lies. A block has whole tiles, n_blocks apart, then its share of the units of those that are left.
// Constant indices keep the parameters where they are.
struct WarpgroupPlace {
  const uint8_t* w;
  int product, n_out, first_out, first_row, tile, chunk;
  int n_units, first_left;  // of the block; where its share begins

  LB_DEVICE explicit WarpgroupPlace(const LinearBatch& p) {
    int out_tiles = p.first_tile[1];
    LB_UNROLL
    for (int i = 2; i <= kMaxProducts; ++i)
      if (i <= p.group.n) out_tiles = p.first_tile[i];
    const long n_left = long(out_tiles * p.n_row_tiles - p.n_whole) * p.n_chunks;
    first_left = int(n_left * block_id() / n_blocks());
    n_units = int(n_left * (block_id() + 1) / n_blocks()) - first_left;
    if (block_id() < p.n_whole) {
      n_units += ((p.n_whole - 1 - block_id()) / n_blocks() + 1) * p.n_chunks;
      tile = block_id();
      chunk = 0;
    } else {
      enter_share(p);
    }
    find(p);
  }
  // Whether that is another tile.
  LB_DEVICE bool next(const LinearBatch& p) {
    if (++chunk < p.n_chunks) return false;
    chunk = 0;
    if (tile >= p.n_whole)
      ++tile;
    else if (tile + n_blocks() < p.n_whole)
      tile += n_blocks();
    else
      enter_share(p);
    find(p);
    return true;
  }

 private:
  LB_DEVICE void enter_share(const LinearBatch& p) {
    tile = p.n_whole + first_left / p.n_chunks;
    chunk = first_left % p.n_chunks;
  }
  LB_DEVICE void find(const LinearBatch& p) {
    const int out_tile = tile / p.n_row_tiles;
    first_row = (tile - out_tile * p.n_row_tiles) * p.tile_rows;
    const void* weights = p.group.products[0].w;
    n_out = p.group.products[0].n_out;
    int first = product = 0;
    LB_UNROLL
    for (int i = 1; i < kMaxProducts; ++i)
      if (i < p.group.n && out_tile >= p.first_tile[i]) {
        weights = p.group.products[i].w;
        n_out = p.group.products[i].n_out;
        first = p.first_tile[i];
        product = i;
      }
    w = static_cast<const uint8_t*>(weights);
    first_out = (out_tile - first) * p.tile_outs;
  }
};

template <class Weights_, int kTileRows_, int kFrags_>
struct WarpgroupTile {
  using Weights = Weights_;
  using T = typename Weights::Value;
  using Scales = typename Weights::template Scales<kFrags_>;
  static constexpr DType kType = Weights::kType;
  static constexpr int kTileRows = kTileRows_, kFrags = kFrags_, kOuts = kBatchWarps * 16 * kFrags;
  static constexpr int kValues = warpgroup_values(kType), kStages = warpgroup_stages(kType, kTileRows, kOuts);
  static constexpr int kXBytes = kTileRows * 2 * kValues, kWeightBytes = kOuts * batch_code_row(kType, kValues);
};

// What lies in shared memory.
template <class Tile>
struct WarpgroupMemory {
  uint8_t *x, *weights, *warps;   // [kStages, kXBytes], [kStages, kWeightBytes], [kBatchWarps, kWarpgroupWarpBytes]
  CountedBarrier *full, *empty;  // [kStages]: x has come; all warps have used it

  LB_DEVICE WarpgroupMemory() {
    uint8_t* begin = dynamic_shared<uint8_t>();
    x = begin + -reinterpret_cast<uintptr_t>(begin) % kTileAlignment;
    weights = x + Tile::kStages * Tile::kXBytes;
    warps = weights + Tile::kStages * Tile::kWeightBytes;
    full = reinterpret_cast<CountedBarrier*>(warps + kBatchWarps * kWarpgroupWarpBytes);
    empty = full + Tile::kStages;
  }
};

// A place in the ring, and the parity of the phase in which it is full.
template <int kStages>
struct RingSlot {
  int slot = 0, parity = 0;
  LB_DEVICE void next() {
    if (++slot < kStages) return;
    slot = 0;
    parity ^= 1;
  }
};

// By one thread: 64 values of all rows of a tile are neighbours in x16.
template <class Tile>
LB_DEVICE void bring_rows(const LinearBatch& p, WarpgroupPlace at, const WarpgroupMemory<Tile>& memory) {
  constexpr int kParts = Tile::kValues / kHalfValues;
  const int n_rows = padded_rows(p.group.products[0].rows);
  RingSlot<Tile::kStages> ring;
  for (int unit = 0; unit < at.n_units; ++unit) {
    const int bytes = min(Tile::kTileRows, n_rows - at.first_row) * kTileRowBytes;
    barrier_wait(memory.empty + ring.slot, ring.parity ^ 1);
    barrier_expect(memory.full + ring.slot, kParts * bytes);
    LB_UNROLL
    for (int part = 0; part < kParts; ++part) {
      const long row = long(at.chunk * kParts + part) * n_rows + at.first_row;
      copy_bulk(memory.x + ring.slot * Tile::kXBytes + part * Tile::kTileRows * kTileRowBytes,
                static_cast<const uint8_t*>(p.x16) + row * kTileRowBytes, bytes, memory.full + ring.slot);
    }
    at.next(p);
    ring.next();
  }
}

// One plane's codes of this warp's outputs: zeros behind the end of a row, the last output again behind the last. A
// lane has one piece of 16 bytes of every (32 / pieces)-th row.
template <class Tile, int kPlane>
LB_DEVICE void fetch_plane(const LinearBatch& p, const WarpgroupPlace& at, uint8_t* to) {
  constexpr int kBytes = batch_code_bytes(Tile::kType, kPlane, Tile::kValues), kStride = batch_stride(kBytes);
  constexpr int kRows = 16 * Tile::kFrags, kPieces = kBytes / 16, kStep = 32 / kPieces;
  static_assert(32 % kPieces == 0 && kRows % kStep == 0);
  constexpr bool kIsWhole = quant::plane_format(Tile::kType).block_values % Tile::kValues == 0;
  const quant::PlaneLayout layout = quant::plane_layout(Tile::kType, at.n_out, p.group.products[0].n_in);
  const int thread = forget(thread_id()), row = thread / 32 * kRows + thread % 32 / kPieces, piece = thread % kPieces;
  const uint32_t byte = at.chunk * kBytes + piece * 16, row_bytes = uint32_t(layout.row_bytes[kPlane]);
  const uint8_t* plane = at.w + layout.offset[kPlane] + byte;
  to += row * kStride + piece * 16;
  LB_UNROLL
  for (int i = 0; i < kRows; i += kStep) {
    const uint32_t out = min(at.first_out + row + i, at.n_out - 1);
    if (kIsWhole || byte < row_bytes)
      copy_async<16>(to + i * kStride, plane + uint64_t(out) * row_bytes);
    else
      store(to + i * kStride, u32x4{});
  }
}
template <class Tile>
LB_DEVICE void fetch_weights(const LinearBatch& p, const WarpgroupPlace& at, uint8_t* stage) {
  constexpr int kRowBytes = batch_stride(batch_code_bytes(Tile::kType, 0, Tile::kValues));
  fetch_plane<Tile, 0>(p, at, stage);
  if constexpr (batch_code_bytes(Tile::kType, 1, Tile::kValues) > 0)
    fetch_plane<Tile, 1>(p, at, stage + Tile::kOuts * kRowBytes);
}

// Where the sums of a tile go: to y, or to a place for partial sums.
struct WarpgroupSums {
  const float* add;
  float* to;
  int row_outs, n_outs, n_rows;  // outputs from one row to the next; there are so many of the tile
};
template <class Tile>
LB_DEVICE WarpgroupSums sums_place(const LinearBatch& p, const WarpgroupPlace& at, bool is_complete, bool is_last) {
  if (!is_complete) {
    const long slot = 2l * block_id() + is_last;
    return {nullptr, p.partials + slot * Tile::kTileRows * Tile::kOuts, Tile::kOuts, Tile::kOuts, Tile::kTileRows};
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
  return {add != nullptr ? add + corner : nullptr, y + corner, at.n_out, at.n_out - at.first_out,
          min(p.group.products[0].rows - at.first_row, Tile::kTileRows)};
}

// Through the warp's shared memory: a lane has four neighbouring outputs of a row.
template <class Tile>
LB_DEVICE void write_sums(FragmentC (&sums)[Tile::kFrags][Tile::kTileRows / 16], const WarpgroupSums& place,
                          float* warp_memory) {
  constexpr int kStride = 20;  // 16 and room: neighbouring rows lie in different banks
  static_assert(16 * kStride * sizeof(float) <= kWarpgroupWarpBytes);
  const uintptr_t bits = reinterpret_cast<uintptr_t>(place.to) | reinterpret_cast<uintptr_t>(place.add);
  const bool is_aligned = (bits | place.row_outs * sizeof(float)) % 16 == 0;
  LB_UNROLL
  for (int frag = 0; frag < Tile::kFrags; ++frag) {
    const int out = (warp() * Tile::kFrags + frag) * 16 + lane() % 4 * 4;
    LB_UNROLL
    for (int piece = 0; piece < Tile::kTileRows / 16; ++piece) {
      warp_barrier();
      for_each(sums[frag][piece], [&](int i, int row, float& sum) { store(warp_memory + row * kStride + i, sum); });
      warp_barrier();
      LB_UNROLL
      for (int i = 0; i < 16; i += 8) {
        const int piece_row = i + lane() / 4, row = piece * 16 + piece_row;
        f32x4 sum = load<f32x4>(warp_memory + piece_row * kStride + lane() % 4 * 4);
        if (row >= place.n_rows) continue;
        const long at = long(row) * place.row_outs + out;
        if (is_aligned && out + 4 <= place.n_outs) {
          if (place.add != nullptr) {
            const f32x4 before = load<f32x4>(place.add + at);
            LB_UNROLL
            for (int j = 0; j < 4; ++j) sum[j] += before[j];
          }
          store(place.to + at, sum);
        } else {
          LB_UNROLL
          for (int j = 0; j < 4; ++j)
            if (out + j < place.n_outs)
              place.to[at + j] = place.add != nullptr ? sum[j] + place.add[at + j] : sum[j];
        }
      }
    }
  }
}

// A chunk into the sums; started() is called when the products of the chunk before have ended.
template <class Tile, class Started>
LB_DEVICE void multiply_chunk(FragmentC (&sums)[Tile::kFrags][Tile::kTileRows / 16],
                              FragmentA<typename Tile::T> (&a)[2][Tile::kFrags], const uint8_t* weights,
                              const uint8_t* x, const typename Tile::Scales& scales, Started&& started) {
  using T = typename Tile::T;
  LB_UNROLL
  for (int run = 0; run < Tile::kValues / kRoundRun; ++run) {
    const typename Tile::Weights::template Run<Tile::kFrags> operands(weights, scales, run);
    LB_UNROLL
    for (int half = 0; half < 2; ++half) {
      operands.half(a[half], half);
      group_begin();
      const auto rows = rows_of(reinterpret_cast<const T*>(x), Tile::kTileRows, 0, run * 32 + half * 16);
      LB_UNROLL
      for (int i = 0; i < Tile::kFrags; ++i) group_multiply<Tile::kTileRows, false>(sums[i], a[half][i], rows);
      group_commit();
      group_wait<1>();  // the step before has ended: its fragments are the next ones
      if (run == 0 && half == 0) started();
    }
  }
}

template <class Tile>
LB_DEVICE void multiply_units(const LinearBatch& p, WarpgroupPlace at, const WarpgroupMemory<Tile>& memory) {
  constexpr int kAhead = Tile::kStages - 1;
  const int n_units = at.n_units;
  WarpgroupPlace ahead = at;
  for (int i = 0; i < kAhead; ++i) {
    if (i < n_units) {
      fetch_weights<Tile>(p, ahead, memory.weights + i * Tile::kWeightBytes);
      ahead.next(p);
    }
    copy_commit();
  }
  uint8_t* warp_memory = memory.warps + warp() * kWarpgroupWarpBytes;
  typename Tile::Scales scales(warp_memory);
  scales.find(p, at);
  scales.read(at.chunk);
  dependents_may_launch();
  wait_for_previous();

  RingSlot<Tile::kStages> ring;
  for (int unit = 0; unit < n_units;) {
    FragmentC sums[Tile::kFrags][Tile::kTileRows / 16];
    FragmentA<typename Tile::T> a[2][Tile::kFrags];
    LB_UNROLL
    for (int i = 0; i < Tile::kFrags * Tile::kTileRows / 16; ++i)
      fill(sums[i % Tile::kFrags][i / Tile::kFrags], 0);
    const WarpgroupPlace of_tile = at;
    const int n_own = min(n_units - unit, p.n_chunks - at.chunk), end = unit + n_own;
    int in_use = -1;  // the slot whose x products may still read
    const auto release = [&] {
      if (in_use >= 0 && lane() == 0) barrier_arrive(memory.empty + in_use);
    };
    for (; unit < end; ++unit) {
      copy_wait<kAhead - 1>();
      warp_barrier();  // this chunk's weights are there, and those before are read
      if (unit + kAhead < n_units) {
        const int before = ring.slot == 0 ? kAhead : ring.slot - 1;
        fetch_weights<Tile>(p, ahead, memory.weights + before * Tile::kWeightBytes);
        ahead.next(p);
      }
      copy_commit();
      scales.unpack();
      if (unit + 1 < n_units) {
        if (at.next(p)) scales.find(p, at);
        scales.read(at.chunk);
      }
      warp_barrier();
      barrier_wait(memory.full + ring.slot, ring.parity);
      multiply_chunk<Tile>(sums, a, memory.weights + ring.slot * Tile::kWeightBytes,
                           memory.x + ring.slot * Tile::kXBytes, scales, release);
      in_use = ring.slot;
      ring.next();
    }
    LB_UNROLL
    for (int i = 0; i < Tile::kFrags; ++i) group_wait<0>(sums[i]);
    release();
    const WarpgroupSums place = sums_place<Tile>(p, of_tile, n_own == p.n_chunks, of_tile.chunk == 0);
    write_sums<Tile>(sums, place, reinterpret_cast<float*>(warp_memory));
  }
}

template <class Tile>
LB_DEVICE void linear_warpgroup(const LinearBatch& p) {
  const WarpgroupMemory<Tile> memory;
  if (thread_id() == 0)
    for (int i = 0; i < Tile::kStages; ++i) {
      barrier_init(memory.full + i, 1);
      barrier_init(memory.empty + i, kBatchWarps);
    }
  show_to_products();
  block_barrier();
  const WarpgroupPlace at(p);
  if (shuffle(warp(), 0) >= kBatchWarps) {
    give_registers<24>();
    wait_for_previous();
    if (thread_id() == kBatchThreads) bring_rows<Tile>(p, at, memory);
  } else {
    take_registers<240>();
    multiply_units<Tile>(p, at, memory);
  }
}

}  // namespace lb::gpu
