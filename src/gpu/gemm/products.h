// How the GEMMs of gemm.h multiply a chunk of weights by x: as bytes, 16-bit numbers or fp32. A product has
//   kType, kFrags   the weight type; fragments of 16 outputs per warp
//   kValues         values per chunk
//   kTileRows       rows of x in a tile
//   kXBytes         bytes of x in a stage; fetch_x copies them, with zeros beyond the end of a row
//   Scales          read: loads the next chunk's scales; unpack: decodes them into the warp's shared memory
//   add             multiplies a chunk into the warp's sums, for n_rows rows or more
//   finish          optional: scales the sums of a tile before they are stored
//   kSubtiles       number of subtiles of a warp's sums: kSubtileRows rows and 16 outputs each, fragment 0 first; put
//                   stores one subtile as [kSubtileRows, 16] and clears it
#pragma once

#include "gpu/gemm/formats.h"

namespace lb::gpu {

// Scales of quantised weights. A lane loads the scales of kBlocks consecutive blocks of one of the warp's outputs.
template <class Format, int kFrags, int kValues>
struct UnpackedScales {
  static constexpr int kRowBlocks = kValues / kRoundBlock, kBlocks = kFrags * kRowBlocks / 2,
                       kOutLanes = kRowBlocks / kBlocks;
  typename Format::template Scales<kBlocks> raw;
  f32x2* unpacked;  // [kFrags, kRowBlocks, 16]

  static_assert(kFrags * kRowBlocks * 16 * sizeof(f32x2) <= kGemmWarpBytes);

  template <class Cursor>
  LB_DEVICE UnpackedScales(const Gemm& p, const Cursor& at, void* warp_memory)
      : unpacked(static_cast<f32x2*>(warp_memory)) {
    read(p, at);
  }
  template <class Cursor>
  LB_DEVICE void read(const Gemm& p, const Cursor& at) {
    const int out = at.first_out + warp() * 16 * kFrags + lane() / kOutLanes;
    raw.read({at.w, at.n_out, p.group.products[0].n_in, min(out, at.n_out - 1), at.chunk * kRowBlocks + first_block()});
  }
  LB_DEVICE void unpack() const {
    const int out = lane() / kOutLanes;
    LB_UNROLL
    for (int i = 0; i < kBlocks; ++i)
      store(unpacked + (out / 16 * kRowBlocks + first_block() + i) * 16 + out % 16, raw.field(i));
  }

 private:
  LB_DEVICE static int first_block() { return lane() % kOutLanes * kBlocks; }
};

struct NoScales {
  f32x2* unpacked = nullptr;
  template <class Cursor>
  LB_DEVICE NoScales(const Gemm&, const Cursor&, void*) {}
  template <class Cursor>
  LB_DEVICE void read(const Gemm&, const Cursor&) {}
  LB_DEVICE void unpack() const {}
};

// The codes of the warp's fragment `frag` in a chunk.
template <DType kType, int kFrags, int kValues>
LB_DEVICE CodeRows code_rows(const uint8_t* weights, int frag) {
  constexpr int kStride0 = gemm_stride(gemm_code_bytes(kType, 0, kValues));
  constexpr int kStride1 = gemm_stride(gemm_code_bytes(kType, 1, kValues));
  const int row = (warp() * kFrags + frag) * 16;
  const uint8_t* second = weights + kGemmWarps * kFrags * 16 * kStride0;
  return {{weights + row * kStride0, second + row * kStride1}, {kStride0, kStride1}};
}

// Multiplies codes of rounded x by codes of weights as bytes, exact within a block: one product for 8-bit x, two for
// 16-bit x.
//
// Integer sums start from the bits of 1.5 * 2^23. Reinterpreted as fp32, they equal the sum plus 1.5 * 2^23, without a
// conversion. The fma that scales them subtracts 1.5 * 2^23 times the weights' scale, which is exact.
template <class Format, int kTileRows_, int kBits>
struct ByteProduct {
  static constexpr int kTileRows = kTileRows_;
  static constexpr DType kType = Format::kType;
  static constexpr int kFrags = 1, kValues = kByteValues, kXBytes = gemm_byte_x(kTileRows, kBits);
  using Scales = UnpackedScales<Format, kFrags, kValues>;

  template <class Cursor>
  LB_DEVICE static void fetch_x(const Gemm& p, const Cursor& at, uint8_t* stage) {
    // A thread copies 16 bytes of a row's codes and one of its scales or sums.
    constexpr int kPieces = kValues / 16, kStep = kGemmThreads / kPieces;
    static_assert(kPieces == 2 * kBlocks);
    const int n_in = p.group.products[0].n_in, n_row_blocks = n_in / kRoundBlock;
    const int thread = opaque(thread_id()), piece = thread % kPieces;
    const int k = at.chunk * kValues + piece * 16, block = at.chunk * kBlocks + piece % kBlocks;
    const float* fields = piece < kBlocks ? p.x.scale : p.x.sum;
    LB_UNROLL
    for (int i = 0; i < kTileRows; i += kStep) {
      const int row = i + thread / kPieces;
      if (kTileRows % kStep != 0 && row >= kTileRows) break;
      if (i >= at.template used_rows<kTileRows>()) break;
      const long x_row = at.x_row(p, row);
      uint8_t* to = stage + row * kStride + piece * 16;
      copy_or_zero<16>(to, p.x.high + x_row * n_in + k, k < n_in);
      if constexpr (kBits == 16) copy_or_zero<16>(to + kPadRows * kStride, p.x.low + x_row * n_in + k, k < n_in);
      if (Format::kHasMin || piece < kBlocks)
        copy_or_zero<4>(stage + kScalesAt + (piece * kPadRows + row) * 4, fields + x_row * n_row_blocks + block,
                        block < n_row_blocks);
    }
  }

  LB_DEVICE void add(const uint8_t* weights, const uint8_t* x, const f32x2* scales, int n_rows) {
    const CodeRows rows = code_rows<kType, kFrags, kValues>(weights, 0);
    const float* x_scales = reinterpret_cast<const float*>(x + kScalesAt);
    LB_UNROLL_BY(1)
    for (int pair = 0; pair < kBlocks / 2; ++pair) {
      ByteHalf a[2][2];
      SumRowsA<f32x2> fields[2];
      LB_UNROLL
      for (int block = 0; block < 2; ++block) {
        Format::codes(a[block], rows, 2 * pair + block);
        load(fields[block], scales + (2 * pair + block) * 16);
      }
      LB_UNROLL
      for (int tile = 0; tile < kSubtiles; ++tile) {
        if (tile > 0 && tile * kByteRows >= n_rows) continue;
        sched_barrier();
        BytesB high[2], low[2];
        load(high, x + tile * kByteRows * kStride + pair * 64, kStride);
        if constexpr (kBits == 16) load(low, x + (kPadRows + tile * kByteRows) * kStride + pair * 64, kStride);
        LB_UNROLL
        for (int block = 0; block < 2; ++block) {
          SumRowsB scale, sum;
          const int offset = (2 * pair + block) * kPadRows + tile * kByteRows;
          load(scale, x_scales + offset);
          if constexpr (Format::kHasMin) load(sum, x_scales + kBlocks * kPadRows + offset);
          if constexpr (Format::kHasHalves) {
            LB_UNROLL
            for (int half = 0; half < 2; ++half) {
              const ByteSums high_sums = multiply_half(a[block][half], high[block], half, kStart);
              ByteSums low_sums;
              if constexpr (kBits == 16) low_sums = multiply_half(a[block][half], low[block], half, kStart);
              add_scaled(sums_[tile], high_sums, low_sums, fields[block], half, scale);
            }
          } else {
            const ByteSums high_sums = multiply(a[block][0], a[block][1], high[block], kStart);
            ByteSums low_sums;
            if constexpr (kBits == 16) low_sums = multiply(a[block][0], a[block][1], low[block], kStart);
            add_scaled(sums_[tile], high_sums, low_sums, fields[block], 0, scale);
          }
          if constexpr (Format::kHasMin)
            for_each_sum([&](int, int, int i, int j, int n) {
              sums_[tile].v[n] = fma(-fields[block].v[i][1], sum.v[j], sums_[tile].v[n]);
            });
        }
      }
    }
  }

  static constexpr int kSubtileRows = kByteRows, kSubtiles = (kTileRows + kByteRows - 1) / kByteRows;
  LB_DEVICE void put(int subtile, float* to) {
    for_each_sum([&](int out, int row, int, int, int n) {
      store(to + row * 16 + out, sums_[subtile].v[n]);
      sums_[subtile].v[n] = 0;
    });
  }

 private:
  static constexpr int kBlocks = kValues / kRoundBlock, kStride = gemm_stride(kValues), kPadRows = gemm_pad(kTileRows);
  static constexpr int kStart = 0x4b400000;
  static constexpr float kStartValue = 12582912.0f;
  struct Sums {
    float v[sizeof(ByteSums) / 4] = {};
  };
  Sums sums_[kSubtiles];

  static constexpr int kScalesAt =
      kPadRows * kStride * (kBits / 8);  // offset of x's scales and sums in a stage, [2, kBlocks, kPadRows]
  template <int kBytes, class T>
  LB_DEVICE static void copy_or_zero(void* to, const T* from, bool is_inside) {
    if (is_inside)
      copy_async<kBytes>(to, from);
    else
      store(to, Vec<uint32_t, kBytes / 4>{});
  }
  LB_DEVICE static void add_scaled(Sums& sums, const ByteSums& high_sums, const ByteSums& low_sums,
                                   const SumRowsA<f32x2>& fields, int field, const SumRowsB& scale) {
    for_each_sum([&](int, int, int i, int j, int n) {
      const float w = fields.v[i][field], whole = quant::float_of(uint32_t(high_sums.v[n]));
      float product;
      if constexpr (kBits == 16) {
        const float part = (quant::float_of(uint32_t(low_sums.v[n])) - kStartValue) * (1 / 254.0f);
        product = w * ((whole - kStartValue) + part);
      } else {
        product = fma(whole, w, -kStartValue * w);
      }
      sums.v[n] = fma(product, scale.v[j], sums.v[n]);
    });
  }
};

// Copies rows of x16, which is padded to whole chunks.
template <int kTileRows, class Cursor>
LB_DEVICE void fetch_x16(const Gemm& p, const Cursor& at, uint8_t* stage) {
  constexpr int kPieces = kHalfValues / 8, kStride = gemm_stride(2 * kHalfValues);
  const long row_bytes = 2l * x16_values(p.group.products[0].n_in);
  const int thread = opaque(thread_id()), piece = thread % kPieces;
  const char* from = static_cast<const char*>(p.x16) + at.chunk * 2 * kHalfValues + piece * 16;
  LB_UNROLL
  for (int i = 0; i < kTileRows; i += kGemmThreads / kPieces) {
    const int row = i + thread / kPieces;
    if (kTileRows < kGemmThreads / kPieces && row >= kTileRows) break;
    if (i >= at.template used_rows<kTileRows>()) break;
    copy_async<16>(stage + row * kStride + piece * 16, from + at.x_row(p, row) * row_bytes);
  }
}

// The matrix units' stand-in for bf16: f16 on chips without a bf16 matrix instruction.
template <bool kHasBf16>
struct WideNumber {
  using Type = bf16;
};
template <>
struct WideNumber<false> {
  using Type = f16;
};
using Wide = WideNumber<kHasBf16Matrix>::Type;

// Plain 16-bit weights as operands of type T. Operands<kFrags>::half(a, i) loads 16 of a block's 32 values.
template <class Stored, DType kType_, class T>
struct PlainHalves {
  using Value = T;
  static constexpr DType kType = kType_;
  template <int kFrags>
  using Scales = NoScales;

  template <int kFrags>
  struct Operands {
    const uint8_t* weights;
    int block;
    LB_DEVICE Operands(const uint8_t* weights_, const f32x2*, int run_) : weights(weights_), block(run_) {}
    LB_DEVICE void half(FragmentA<T> (&a)[kFrags], int i) const {
      LB_UNROLL
      for (int frag = 0; frag < kFrags; ++frag) {
        const CodeRows rows = code_rows<kType, kFrags, kHalfValues>(weights, frag);
        FragmentA<Stored> stored;
        load_shared(stored, reinterpret_cast<const Stored*>(rows.plane[0]) + block * 32 + i * 16, rows.stride[0] / 2);
        if constexpr (__is_same(Stored, T))
          a[frag] = stored;
        else
          convert(a[frag], stored);
      }
    }
  };
};

// Quantised weights, expanded in registers to operands of type T and rounded.
template <class Format, class T>
struct ExpandedHalves {
  using Value = T;
  static constexpr DType kType = Format::kType;
  template <int kFrags>
  using Scales = UnpackedScales<Format, kFrags, kHalfValues>;

  template <int kFrags>
  struct Operands {
    OperandRows<f32x2> fields[kFrags];
    ByteHalf codes[kFrags][2];
    LB_DEVICE Operands(const uint8_t* weights, const f32x2* scales, int block) {
      LB_UNROLL
      for (int frag = 0; frag < kFrags; ++frag) {
        Format::codes(codes[frag], code_rows<kType, kFrags, kHalfValues>(weights, frag), block);
        load(fields[frag], scales + (frag * (kHalfValues / kRoundBlock) + block) * 16, int(sizeof(f32x2)));
      }
    }
    LB_DEVICE void half(FragmentA<T> (&a)[kFrags], int i) const {
      LB_UNROLL
      for (int frag = 0; frag < kFrags; ++frag) {
        OperandRows<f32x2> of_half = fields[frag];
        if constexpr (Format::kHasHalves) {
          LB_UNROLL
          for (f32x2& field : of_half.v) field = {field[i], 0};
        }
        if constexpr (requires { Format::numbers(0u); })
          expand(a[frag], codes[frag][i], of_half, Format::numbers);
        else
          expand(a[frag], codes[frag][i], of_half, signed_numbers);
      }
    }
  };
};

// Multiplies 16-bit x by 16-bit weights, with fp32 sums.
template <class Weights, int kTileRows_, int kFrags_>
struct HalfProduct {
  static constexpr int kTileRows = kTileRows_;
  using T = typename Weights::Value;
  static constexpr DType kType = Weights::kType;
  static constexpr int kFrags = kFrags_, kValues = kHalfValues, kXBytes = gemm_half_x(kTileRows);
  using Scales = typename Weights::template Scales<kFrags>;

  LB_DEVICE HalfProduct() {
    LB_UNROLL
    for (int i = 0; i < kSubtiles; ++i) fill(sums_[i / kTiles][i % kTiles], 0);
  }
  template <class Cursor>
  LB_DEVICE static void fetch_x(const Gemm& p, const Cursor& at, uint8_t* stage) {
    fetch_x16<kTileRows>(p, at, stage);
  }
  LB_DEVICE void add(const uint8_t* weights, const uint8_t* x, const f32x2* scales, int n_rows) {
    constexpr int kStride = gemm_stride(2 * kHalfValues) / 2;
    for (int block = 0; block < kHalfValues / kRoundBlock; ++block) {
      const typename Weights::template Operands<kFrags> operands(weights, scales, block);
      LB_UNROLL
      for (int half = 0; half < 2; ++half) {
        FragmentA<T> a[kFrags];
        operands.half(a, half);
        LB_UNROLL
        for (int tile = 0; tile < kTiles; ++tile) {
          if (tile > 0 && tile * 16 >= n_rows) continue;
          sched_barrier();
          FragmentB<T> b;
          load_shared(b, reinterpret_cast<const T*>(x) + tile * 16 * kStride + block * 32 + half * 16, kStride);
          LB_UNROLL
          for (int i = 0; i < kFrags; ++i) multiply(sums_[i][tile], a[i], b);
        }
      }
    }
  }
  static constexpr int kSubtileRows = 16, kSubtiles = kFrags * kTileRows / 16;
  LB_DEVICE void put(int subtile, float* to) {
    FragmentC& sums = sums_[subtile / kTiles][subtile % kTiles];
    for_each(sums, [&](int out, int row, float& sum) { store(to + row * 16 + out, sum); });
    fill(sums, 0);
  }

 private:
  static constexpr int kTiles = kTileRows / 16;
  FragmentC sums_[kFrags][kTiles];
};

// Multiplies fp32 x by fp32 weights with fused multiply-adds: a lane computes one output for every other row.
template <int kTileRows_>
struct FloatProduct {
  static constexpr int kTileRows = kTileRows_;
  static constexpr DType kType = DType::kF32;
  static constexpr int kFrags = 1, kValues = kFloatValues, kXBytes = gemm_float_x(kTileRows);
  static_assert(kValues == 32);
  using Scales = NoScales;

  template <class Cursor>
  LB_DEVICE static void fetch_x(const Gemm& p, const Cursor& at, uint8_t* stage) {
    const int n_in = p.group.products[0].n_in;
    const int k = at.chunk * kValues + lane();
    LB_UNROLL
    for (int i = 0; i < kTileRows; i += kGemmWarps) {
      if (i >= at.template used_rows<kTileRows>()) break;
      const int row = at.x_row(p, i + warp());
      uint8_t* to = stage + (i + warp()) * kStride + lane() * 4;
      if (k < n_in)
        copy_async<4>(to, p.group.products[0].x + long(row) * n_in + k);
      else
        store(to, 0.0f);
    }
  }
  LB_DEVICE void add(const uint8_t* weights, const uint8_t* x, const f32x2*, int n_rows) {
    const uint8_t* row = weights + (warp() * 16 + lane() % 16) * kStride;
    for (int k = 0; k < kValues; k += 4) {
      const f32x4 w = load<f32x4>(row + k * 4);
      LB_UNROLL
      for (int i = 0; i < kTileRows / 2; ++i) {
        if (i > 0 && 2 * i >= n_rows) break;
        const f32x4 v = load<f32x4>(x + (2 * i + lane() / 16) * kStride + k * 4);
        LB_UNROLL
        for (int j = 0; j < 4; ++j) sums_[i] = fma(w[j], v[j], sums_[i]);
      }
    }
  }
  static constexpr int kSubtileRows = 16, kSubtiles = kTileRows / 16;
  LB_DEVICE void put(int subtile, float* to) {
    LB_UNROLL
    for (int i = 0; i < 8; ++i) {
      store(to + (2 * i + lane() / 16) * 16 + lane() % 16, sums_[8 * subtile + i]);
      sums_[8 * subtile + i] = 0;
    }
  }

 private:
  static constexpr int kStride = gemm_stride(4 * kFloatValues);
  float sums_[kTileRows / 2] = {};
};

}  // namespace lb::gpu
