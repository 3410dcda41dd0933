// The body of skinny GEMM: y[rows, n_out] = x[rows, n_in] w[n_out, n_in]^T (+ add), or the next GEMMs' x instead of y.
//
// Grid: x, slices of the inner dimension; y, ranges of outputs (shape.h). x of the slice is in shared memory as 16-bit
// numbers. For quantised weights, x is in units of one power of two per row and 256 values, which multiplies the sums.
// Weights are loaded straight into registers and converted to 16-bit operands there: no ring, no barrier in the loop. A
// warp reads its units (16 outputs, 256 values) in order and holds up to kUnits of them. The first units are loaded
// before the previous kernel has ended. Partials keep the layout of the accumulators; epilogue.h adds them. Bound:
// bandwidth, weights read once. Notebook: docs/kernels/gemm_skinny.md.
#pragma once

#include "gpu/gemm_skinny/epilogue.h"
#include "gpu/gemm_skinny/formats.h"

namespace lb::gpu {

// Cursor over a lane's weights: outputs lane / 4 and lane / 4 + 8 of a tile, clamped to the matrix's last output.
template <class Format>
struct SkinnyCursor {
  typename Format::RowCursor rows[2];
  int tile, k_block;

  LB_DEVICE SkinnyCursor(const SkinnyWork& work, int unit)
      : tile(unit / work.n_k_blocks), k_block(unit - tile * work.n_k_blocks) {}
  LB_DEVICE void next(const GemmSkinny& p, const SkinnyWork& work) {
    if (++k_block < work.n_k_blocks) {
      LB_UNROLL
      for (int i = 0; i < 2; ++i) rows[i].next();
      return;
    }
    k_block = 0;
    ++tile;
    find(p, work);
  }
  LB_DEVICE void find(const GemmSkinny& p, const SkinnyWork& work) {
    const SkinnyTile matrix(p, work.first_tile + tile);
    const quant::PlaneLayout layout = quant::plane_layout(Format::kType, matrix.n_out, work.n_in);
    LB_UNROLL
    for (int i = 0; i < 2; ++i)
      rows[i] = typename Format::RowCursor(static_cast<const uint8_t*>(matrix.w), layout,
                                           min(matrix.first_out + lane() / 4 + 8 * i, matrix.n_out - 1),
                                           work.first_k_block + k_block);
  }
};

// Stores a block of 32 codes as f16(code * scale), rounded once: the fp32 scale is split into two f16. Each word of
// four codes becomes the pairs (0, 2) and (1, 3). Returns the sum of the codes.
LB_DEVICE int convert_block(uint8_t* to, const u32x4 (&codes)[2], float scale) {
  const f16 high = to_f16(scale), low = to_f16(scale - to_f32(high));
  const uint32_t highs = high.bits * 0x10001u, lows = low.bits * 0x10001u;
  int sum = 0;
  LB_UNROLL
  for (int j = 0; j < 4; ++j) {
    u32x4 out;
    LB_UNROLL
    for (int half = 0; half < 2; ++half) {
      sum = dot4(int(codes[half][j]), 0x01010101, sum);
      const uint32_t word = codes[half][j] ^ 0x80808080u;
      LB_UNROLL
      for (int odd = 0; odd < 2; ++odd) {
        const f16x2 pair = code_pair(word, odd);
        out[2 * half + odd] = pair_bits(fma2(pair, pair_of(highs), times(pair, lows)));
      }
    }
    store(to + j * 128, out);
  }
  return sum;
}

// The factor of a row's norm, 1 / rms. Eight lanes share a row and add its sums of squares, one per 32 values. One
// round of loads covers 8192 values.
struct SkinnyRowNorm {
  static constexpr int kLoads = 8;
  const float* squares = nullptr;  // [n_in / 32] of the row; null: the row has no norm
  int n_sums;
  f32x4 loaded[kLoads];

  LB_DEVICE void prefetch(const GemmSkinny& p, int row, int n_in) {
    if (p.norm != SkinnyNorm::kRow) return;
    n_sums = n_in / kRoundBlock;
    squares = p.squares + min(row, p.group.products[0].rows - 1) * n_sums;
    load_from(lane() % 8 * 4);
  }
  LB_DEVICE float factor(const GemmSkinny& p) {
    if (squares == nullptr) return 1;
    float sum = 0;
    LB_UNROLL_BY(1)
    for (int first = lane() % 8 * 4;; load_from(first)) {
      LB_UNROLL
      for (int i = 0; i < kLoads; ++i) sum += loaded[i][0] + loaded[i][1] + (loaded[i][2] + loaded[i][3]);
      first += kLoads * 32;
      if (first >= n_sums) break;
    }
    LB_UNROLL
    for (int mask = 1; mask < 8; mask *= 2) sum += shuffle_xor(sum, mask);
    return rsqrt_fast(fma(sum, p.per_value, p.eps));
  }

 private:
  LB_DEVICE void load_from(int first) {
    LB_UNROLL
    for (int i = 0; i < kLoads; ++i) {
      loaded[i] = {};
      if (first + i * 32 < n_sums) loaded[i] = load<f32x4>(squares + first + i * 32);
    }
  }
};

// The factor of a head's norm. Called by the lanes that hold the head's blocks.
LB_DEVICE float head_norm_factor(const GemmSkinny& p, float squares) {
  LB_UNROLL
  for (int mask = 1; mask < kSkinnyHead / kRoundBlock; mask *= 2) squares += shuffle_xor(squares, mask);
  return rsqrt_fast(fma(squares, p.per_value, p.eps));
}

// x of a slice in shared memory, [k-blocks, kRows, kSkinnyRowBytes], in the form that weights of kType multiply.
template <DType kType, int kRows>
struct SkinnyX {
  uint8_t* base;

  LB_DEVICE void prefetch(const GemmSkinny& p, const SkinnyWork& work) const {
    if constexpr (skinny_is_plain(kType))
      prefetch_plain(p, work);
    else
      prefetch_codes(p, work);
    copy_commit();
  }

  // Converts the copied codes and scales to 16-bit numbers. norm: the norm of row thread_id() / 8 % kRows.
  LB_DEVICE void convert(const GemmSkinny& p, const SkinnyWork& work, SkinnyRowNorm& norm) const {
    constexpr int kStep = kSkinnyThreads / 8, kTurns = kStep % kRows == 0 ? 1 : 2;
    static_assert(kStep * kTurns % kRows == 0);
    const int n_in = work.n_in, n = work.n_k_blocks * kRows * 8;
    float factors[kTurns] = {norm.factor(p)};
    if (kTurns == 2) {
      norm.prefetch(p, (thread_id() / 8 + kStep) % kRows, n_in);
      factors[kTurns - 1] = norm.factor(p);
    }
    copy_wait<0>();
    LB_UNROLL_BY(1)
    for (int at = thread_id(), turn = 0; at < n; at += kSkinnyThreads, ++turn) {  // whole warps: n is a multiple of 64
      const int row = at / 8 % kRows, block = at % 8;
      uint8_t* to = base + at / 8 * kSkinnyRowBytes;
      const float factor = turn % kTurns == 0 ? factors[0] : factors[kTurns - 1];
      if constexpr (skinny_is_plain(kType)) {
        if (block == 0) store(to + skinny_power_offset(row), factor);
        continue;
      }
      uint8_t* to_sum = to + skinny_sums_offset(row);
      const u32x4 codes[2] = {load<u32x4>(to + block * 32), load<u32x4>(to + block * 32 + 16)};
      float scale = load<float>(to + skinny_side_offset(row) + block * 4);
      if (p.norm == SkinnyNorm::kHead) scale *= head_norm_factor(p, load<float>(to_sum + block * 4));
      float largest = scale;
      LB_UNROLL
      for (int mask = 1; mask < 8; mask *= 2) largest = max(largest, shuffle_xor(largest, mask));
      const int exponent = max(min(int(quant::bits_of(largest) >> 23), 246), 8);
      const float unit = scale * quant::float_of(uint32_t(254 - exponent) << 23);
      warp_barrier();  // this warp has read the codes that its values overwrite
      const float sum = float(convert_block(to + block * 16, codes, unit)) * unit;
      const f16 high = to_f16(sum);
      store(to_sum + block % 4 * 8 + block / 4 * 2, high.bits);
      store(to_sum + block % 4 * 8 + block / 4 * 2 + 4, to_f16(sum - to_f32(high)).bits);
      if (block == 0) store(to + skinny_power_offset(row), quant::float_of(uint32_t(exponent) << 23) * factor);
    }
  }

 private:
  // A lane copies one block; eight lanes copy one k-block of a row. A lane meets at most two different rows. Codes land
  // where other lanes will store values, scales in the side part, and sums of squares where the sums of codes will be.
  LB_DEVICE void prefetch_codes(const GemmSkinny& p, const SkinnyWork& work) const {
    const int n_in = work.n_in, rows = p.group.products[0].rows, n = work.n_k_blocks * kRows * 8;
    LB_UNROLL_BY(1)
    for (int at = thread_id(); at < n; at += kSkinnyThreads) {
      const int row = at / 8 % kRows, block = at % 8;
      const int x_block = (work.first_k_block + at / 8 / kRows) * 8 + block, source_row = row < rows ? row : 0;
      uint8_t* to = base + at / 8 * kSkinnyRowBytes;
      const int8_t* from = p.x.high + (long(source_row) * n_in + x_block * kRoundBlock);
      copy_async_or_zero<16>(to + block * 32, from, row < rows);
      copy_async_or_zero<16>(to + block * 32 + 16, from + 16, row < rows);
      copy_async_or_zero<4>(to + skinny_side_offset(row) + block * 4,
                            p.x.scale + (source_row * (n_in / kRoundBlock) + x_block), row < rows);
      if (p.norm == SkinnyNorm::kHead)
        copy_async_or_zero<4>(to + skinny_sums_offset(row) + block * 4,
                              p.squares + source_row * (n_in / kRoundBlock) + x_block, row < rows);
    }
  }
  // Copies 16-bit x unchanged.
  LB_DEVICE void prefetch_plain(const GemmSkinny& p, const SkinnyWork& work) const {
    constexpr int kPieces = kSkinnyValues * 2 / 16;
    const int rows = p.group.products[0].rows, n = work.n_k_blocks * kRows * kPieces;
    LB_UNROLL_BY(1)
    for (int at = thread_id(); at < n; at += kSkinnyThreads) {
      const int x_row = at / kPieces, row = x_row % kRows, piece = at % kPieces;
      const long source_row = long(row < rows ? row : 0) * work.n_in;
      const long value = source_row + (work.first_k_block + x_row / kRows) * kSkinnyValues + piece * 8;
      copy_async_or_zero<16>(base + x_row * kSkinnyRowBytes + piece * 16, p.x.high + 2 * value, row < rows);
    }
  }
};

// A warp's accumulators: 16 outputs, kRows rows, in the order of for_each_sum.
template <class Format, int kRows>
struct SkinnySums {
  using X = SkinnyX<Format::kType, kRows>;
  static constexpr int kTiles = kRows / 8;
  float v[kTiles][4] = {};

  // Multiplies a unit of plain weights. Each multiplied part is overwritten by a load of the next unit.
  LB_DEVICE void add_plain(typename Format::Unit& unit, const X& x, int k_block,
                           const typename Format::RowCursor (&next)[2], bool has_next) {
    float sums[kTiles][4] = {};
    const int row = lane() / 4, quarter = lane() % 4;
    const uint8_t* from = x.base + (k_block * kRows + row) * kSkinnyRowBytes + quarter * 16;
    const uint8_t* from_power =
        x.base + (k_block * kRows + quarter * 2) * kSkinnyRowBytes + skinny_power_offset(quarter * 2);
    LB_UNROLL
    for (int piece = 0; piece < Format::Unit::kPieces; ++piece) {
      const u32x4 first = unit.values[0][piece], second = unit.values[1][piece];
      const PairsA a[2] = {{{first[0], second[0], first[1], second[1]}}, {{first[2], second[2], first[3], second[3]}}};
      LB_UNROLL
      for (int tile = 0; tile < kTiles; ++tile) {
        const u32x4 b = load<u32x4>(from + tile * 8 * kSkinnyRowBytes + piece * 64);
        Format::multiply(sums[tile], a[0], b[0], b[1]);
        Format::multiply(sums[tile], a[1], b[2], b[3]);
      }
      if (has_next) unit.read(next, piece);
    }
    LB_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) add_powers(sums[tile], from_power, tile);
  }
  template <class Fields>
  LB_DEVICE void add(const typename Format::Unit& unit, const Fields& fields, const X& x, int k_block) {
    constexpr bool kHasHalfMins = requires(const typename Format::Scales& scales) { scales.mins(0); };
    constexpr bool kHasPartScales = requires { fields.scale(0, 0); };
    float sums[kTiles][4] = {}, mins[kTiles][4] = {};
    const int row = lane() / 4, quarter = lane() % 4;
    const uint8_t* from = x.base + (k_block * kRows + row) * kSkinnyRowBytes;
    const uint8_t* from_power =
        x.base + (k_block * kRows + quarter * 2) * kSkinnyRowBytes + skinny_power_offset(quarter * 2);
    LB_UNROLL
    for (int part = 0; part < 2; ++part) {
      const typename Format::Scales scales(fields, part);
      LB_UNROLL
      for (int word = 0; word < 4; ++word) {
        PairsA a[2];
        Format::expand(a, unit, scales, part, word);
        LB_UNROLL
        for (int tile = 0; tile < kTiles; ++tile) {
          const u32x4 b = load<u32x4>(from + tile * 8 * kSkinnyRowBytes + word * 128 + part * 64 + quarter * 16);
          multiply_pairs(sums[tile], a[0], b[0], b[1]);
          multiply_pairs(sums[tile], a[1], b[2], b[3]);
          if constexpr (kHasHalfMins) {
            multiply_pairs(mins[tile], scales.mins(0), b[0], b[1]);
            multiply_pairs(mins[tile], scales.mins(1), b[2], b[3]);
          }
        }
      }
      if constexpr (kHasPartScales) {
        LB_UNROLL
        for (int tile = 0; tile < kTiles; ++tile) {
          for_each_sum([&](int, int, int i, int, int n) { sums[tile][n] *= fields.scale(i, part); });
          add_powers(sums[tile], from_power, tile);
          for_each_sum([&](int, int, int, int, int n) { sums[tile][n] = 0; });
        }
      }
    }
    if constexpr (kHasPartScales) return;
    LB_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      if constexpr (!kHasPartScales)
        for_each_sum([&](int, int, int i, int, int n) { sums[tile][n] *= fields.scale(i); });
      if constexpr (Format::kHasMin) {
        if constexpr (!kHasHalfMins) {
          const u32x2 b = load<u32x2>(from + tile * 8 * kSkinnyRowBytes + skinny_sums_offset(row) + quarter * 8);
          multiply_pairs(mins[tile], fields.mins(), b[0], b[1]);
        }
        for_each_sum(
            [&](int, int, int i, int, int n) { sums[tile][n] = fma(-fields.min(i), mins[tile][n], sums[tile][n]); });
      }
      add_powers(sums[tile], from_power, tile);
    }
  }
  LB_DEVICE void add_powers(const float (&sums)[4], const uint8_t* from_power, int tile) {
    float powers[2];  // the powers of rows 2 * quarter and 2 * quarter + 1
    LB_UNROLL
    for (int j = 0; j < 2; ++j) powers[j] = load<float>(from_power + (tile * 8 + j) * kSkinnyRowBytes);
    for_each_sum([&](int, int, int, int j, int n) { v[tile][n] = fma(powers[j], sums[n], v[tile][n]); });
  }
  // Stores the partial, [kTiles, 32 lanes, 4], and clears it. A plain store of four neighbouring values would compile
  // to four stores.
  LB_DEVICE void put(float* to) {
    LB_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      f32x4 out;
      LB_UNROLL
      for (int n = 0; n < 4; ++n) {
        out[n] = v[tile][n];
        v[tile][n] = 0;
      }
      store_stream(to + (tile * 32 + lane()) * 4, out);
    }
  }
};

// Loads the next unit only after the current one has arrived. The compiler tracks all loads that cross a loop iteration
// together, so waiting for one of them would wait for the newest.
template <class Format, int kRows, int kUnits, bool kIsSecond = false>
LB_DEVICE void gemm_skinny(const GemmSkinny& p) {
  const SkinnyWork work(p, block_id_y(), block_id(), kIsSecond);
  const SkinnyX<Format::kType, kRows> x = {skinny_behind_table(p)};
  int unit = first_of(work.units, warp());
  const int end = unit + size_of(work.units, warp());

  SkinnyCursor<Format> ahead(work, unit);
  int tile = ahead.tile, k_block = ahead.k_block;
  typename Format::Unit units[kUnits];
  LB_UNROLL
  for (int i = 0; i < kUnits; ++i) {
    if (unit + i >= end) break;
    i == 0 ? ahead.find(p, work) : ahead.next(p, work);
    units[i].read(ahead.rows);
  }
  dependents_may_launch();
  wait_for_previous();
  x.prefetch(p, work);
  SkinnyRowNorm norm;
  norm.prefetch(p, thread_id() / 8 % kRows, work.n_in);
  build_partial_table(p, work);
  x.convert(p, work, norm);
  block_barrier();

  SkinnySums<Format, kRows> sums;
  float* partials = p.partials + long(work.range * p.n_slices + work.slice) * skinny_partials(p.max_range_tiles) *
                                     (kRows * kSkinnyOuts);
  const int first = unit;
  while (unit < end) {
    LB_UNROLL
    for (int i = 0; i < kUnits; ++i) {
      if (unit >= end) break;
      const bool has_next = unit + 1 < end;
      if constexpr (skinny_is_plain(Format::kType)) {
        if (has_next) ahead.next(p, work);
        sums.add_plain(units[i], x, k_block, ahead.rows, has_next);
      } else {
        const auto read_next = [&](typename Format::Unit& into) {
          ahead.next(p, work);
          into.read(ahead.rows);
        };
        const typename Format::Fields fields(units[i]);  // waits until the unit has arrived
        if (kUnits == 2 && has_next && unit > first) read_next(units[kUnits - 1 - i]);
        sums.add(units[i], fields, x, k_block);
        if (kUnits == 1 && has_next) read_next(units[0]);
      }
      ++unit;
      if (++k_block < work.n_k_blocks && unit < end) continue;
      sums.put(partials + (tile + warp()) * kRows * 16);
      k_block = 0;
      ++tile;
    }
  }

  const SkinnyWork reduce_work(p, opaque(block_id_y()), opaque(block_id()),
                               kIsSecond);  // recomputed, so that the loop keeps no registers for it
  reduce_range<Format::kType, kRows>(p, reduce_work);
}

// Skinny GEMM of a group of two weight types. Each range has one type.
template <class First, class Second, int kRows, int kFirstUnits, int kSecondUnits>
LB_DEVICE void gemm_skinny_pair(const GemmSkinny& p) {
  if (block_id_y() < p.second_range_begin)
    gemm_skinny<First, kRows, kFirstUnits>(p);
  else
    gemm_skinny<Second, kRows, kSecondUnits, true>(p);
}

}  // namespace lb::gpu
