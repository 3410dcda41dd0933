// How a lane of the mat-vec reads a weight row of each type, from the planes of quant/planes.h. A format has
//   Row    where one weight row lies                      Row(layout, matrix, row)
//   Chunk  what a lane reads at once: kChunkBytes of codes and their scales, chunk i of a row
//   dot    of a chunk with the same values of a staged x
// Quantised formats give their chunk as runs of 16 signed codes, visit(chunk, i, f): f(piece, codes, scale, offset)
// with value = scale * code + offset and piece the place among all runs of 16 of the row. No format indexes an array by
// anything but a constant.
#pragma once

#include "quant/planes.h"
#include "staged_x.h"

namespace lb::gpu {

// Four bytes, 0..255 each without a carry, less a constant: as signed bytes.
template <uint32_t kLess>
LB_DEVICE uint32_t bytes_less(uint32_t bytes) {
  return (bytes + (0x80 - kLess) * 0x01010101u) ^ 0x80808080u;
}

template <DType kType_>
struct PlainFormat {
  static constexpr DType kType = kType_;
  static constexpr int kValues = kType == DType::kF32 ? 4 : 8;
  static constexpr int kUnroll = 2;
  using X = StagedF32;

  struct Row {
    const unsigned char* values;
    Row() = default;
    LB_DEVICE Row(const quant::PlaneLayout& layout, const void* w, size_t row)
        : values(static_cast<const unsigned char*>(w) + row * layout.row_bytes[0]) {}
  };
  using Chunk = u32x4;

  LB_DEVICE static Chunk load(const Row& row, int i) { return load_stream<u32x4>(row.values + 16 * size_t(i)); }

  LB_DEVICE static float dot(const Chunk& chunk, int i, const X& x) {
    float sum = 0;
    if constexpr (kType == DType::kF32) {
      const f32x4 a = x.piece(i);
      LB_UNROLL
      for (int j = 0; j < 4; ++j) sum = fma(quant::float_of(chunk[j]), a[j], sum);
    } else {
      LB_UNROLL
      for (int piece = 0; piece < 2; ++piece) {
        const f32x4 a = x.piece(2 * i + piece);
        LB_UNROLL
        for (int j = 0; j < 2; ++j) {
          sum = fma(low(chunk[2 * piece + j]), a[2 * j], sum);
          sum = fma(high(chunk[2 * piece + j]), a[2 * j + 1], sum);
        }
      }
    }
    return sum;
  }

 private:
  LB_DEVICE static float low(uint32_t pair) {
    return kType == DType::kF16 ? to_f32(f16{uint16_t(pair)}) : quant::float_of(pair << 16);
  }
  LB_DEVICE static float high(uint32_t pair) {
    return kType == DType::kF16 ? to_f32(f16{uint16_t(pair >> 16)}) : quant::float_of(pair & 0xffff0000u);
  }
};

// 16 codes a lane, two lanes a scale.
struct Q8_0Codes {
  static constexpr DType kType = DType::kQ8_0;
  static constexpr int kValues = 16, kUnroll = 2;
  struct Row {
    const unsigned char* codes;
    const f16* scales;
    Row() = default;
    LB_DEVICE Row(const quant::PlaneLayout& layout, const void* w, size_t row)
        : codes(static_cast<const unsigned char*>(w) + row * layout.row_bytes[0]),
          scales(reinterpret_cast<const f16*>(static_cast<const unsigned char*>(w) + layout.offset[1] +
                                              row * layout.row_bytes[1])) {}
  };
  struct Chunk {
    u32x4 codes;
    f16 scale;
  };
  LB_DEVICE static Chunk load(const Row& row, int i) {
    return {load_stream<u32x4>(row.codes + 16 * size_t(i)), load_stream<f16>(row.scales + i / 2)};
  }
  template <class F>
  LB_DEVICE static void visit(const Chunk& chunk, int i, F&& f) {
    f(i, chunk.codes, to_f32(chunk.scale), 0.0f);
  }
};

// A block of 32 a lane: 16 in the low nibbles, 16 in the high ones.
struct Q4_0Codes {
  static constexpr DType kType = DType::kQ4_0;
  static constexpr int kValues = 32, kUnroll = 2;
  using Row = Q8_0Codes::Row;
  using Chunk = Q8_0Codes::Chunk;
  LB_DEVICE static Chunk load(const Row& row, int i) {
    return {load_stream<u32x4>(row.codes + 16 * size_t(i)), load_stream<f16>(row.scales + i)};
  }
  template <class F>
  LB_DEVICE static void visit(const Chunk& chunk, int i, F&& f) {
    const float scale = to_f32(chunk.scale);
    u32x4 low, high;
    LB_UNROLL
    for (int j = 0; j < 4; ++j) {
      low[j] = bytes_less<8>(chunk.codes[j] & 0x0f0f0f0fu);
      high[j] = bytes_less<8>(chunk.codes[j] >> 4 & 0x0f0f0f0fu);
    }
    f(2 * i, low, scale, 0.0f);
    f(2 * i + 1, high, scale, 0.0f);
  }
};

// A block of 256 is 8 lanes: lane 2p + h has half h of runs 2p (low nibbles) and 2p + 1 (high). All 8 read its scales.
struct Q4_KCodes {
  static constexpr DType kType = DType::kQ4_K;
  static constexpr int kValues = 32, kUnroll = 2;
  struct Row {
    const unsigned char* codes;
    const unsigned char* scales;
    Row() = default;
    LB_DEVICE Row(const quant::PlaneLayout& layout, const void* w, size_t row)
        : codes(static_cast<const unsigned char*>(w) + row * layout.row_bytes[0]),
          scales(static_cast<const unsigned char*>(w) + layout.offset[1] + row * layout.row_bytes[1]) {}
  };
  struct Chunk {
    u32x4 codes, scales;  // scales: d dmin, then the 12 bytes
  };
  LB_DEVICE static Chunk load(const Row& row, int i) {
    return {load_stream<u32x4>(row.codes + 16 * size_t(i)), load_cached<u32x4>(row.scales + 16 * size_t(i / 8))};
  }
  template <class F>
  LB_DEVICE static void visit(const Chunk& chunk, int i, F&& f) {
    const int pair = i / 2 % 4, shift = 16 * (pair % 2);
    const uint32_t s0 = chunk.scales[1] >> shift, s1 = chunk.scales[2] >> shift, s2 = chunk.scales[3] >> shift;
    // Of runs 2p and 2p + 1, a byte each (k4_run of quant/decode.h, two at a time).
    const uint32_t scales = pair < 2 ? s0 & 0x3f3f : (s2 & 0x0f0f) | (s0 >> 2 & 0x3030);
    const uint32_t mins = pair < 2 ? s1 & 0x3f3f : (s2 >> 4 & 0x0f0f) | (s1 >> 2 & 0x3030);
    const float d = to_f32(f16{uint16_t(chunk.scales[0])}), dmin = -to_f32(f16{uint16_t(chunk.scales[0] >> 16)});
    u32x4 low, high;
    LB_UNROLL
    for (int j = 0; j < 4; ++j) {
      low[j] = chunk.codes[j] & 0x0f0f0f0fu;
      high[j] = chunk.codes[j] >> 4 & 0x0f0f0f0fu;
    }
    const int piece = i / 2 * 4 + i % 2;
    f(piece, low, d * float(scales & 0xff), dmin * float(mins & 0xff));
    f(piece + 2, high, d * float(scales >> 8 & 0xff), dmin * float(mins >> 8 & 0xff));
  }
};

// A block of 256 is 4 lanes: lane 2h + s has 16 codes of each run j = 0..3 of half h, those from 16s on.
struct Q6_KCodes {
  static constexpr DType kType = DType::kQ6_K;
  static constexpr int kValues = 64, kUnroll = 1;
  struct Row {
    const unsigned char *low, *high, *scales;
    const f16* d;
    Row() = default;
    LB_DEVICE Row(const quant::PlaneLayout& layout, const void* w, size_t row) {
      const unsigned char* base = static_cast<const unsigned char*>(w);
      low = base + row * layout.row_bytes[0];
      high = base + layout.offset[1] + row * layout.row_bytes[1];
      scales = base + layout.offset[2] + row * layout.row_bytes[2];
      d = reinterpret_cast<const f16*>(base + layout.offset[3] + row * layout.row_bytes[3]);
    }
  };
  struct Chunk {
    u32x4 low, low_next, high;  // low: runs 0 and 2, low_next: runs 1 and 3
    u32x2 scales;               // of the half: byte 2j + s
    f16 d;
  };
  LB_DEVICE static Chunk load(const Row& row, int i) {
    const size_t half = size_t(i / 2);
    const int s = i % 2;
    return {load_stream<u32x4>(row.low + 64 * half + 16 * s), load_stream<u32x4>(row.low + 64 * half + 32 + 16 * s),
            load_stream<u32x4>(row.high + 32 * half + 16 * s), load_cached<u32x2>(row.scales + 8 * half),
            load_cached<f16>(row.d + i / 4)};
  }
  template <class F>
  LB_DEVICE static void visit(const Chunk& chunk, int i, F&& f) {
    const int s = i % 2, piece = i / 2 * 8 + s;
    const float d = to_f32(chunk.d);
    LB_UNROLL
    for (int run = 0; run < 4; ++run) {
      u32x4 codes;
      LB_UNROLL
      for (int j = 0; j < 4; ++j) {
        const uint32_t low = (run % 2 ? chunk.low_next[j] : chunk.low[j]) >> 4 * (run / 2) & 0x0f0f0f0fu;
        const uint32_t high = chunk.high[j] >> 2 * run << 4 & 0x30303030u;
        codes[j] = bytes_less<32>(low | high);
      }
      const float scale = float(int8_t(chunk.scales[run / 2] >> (16 * (run % 2) + 8 * s)));
      f(piece + 2 * run, codes, d * scale, 0.0f);
    }
  }
};

template <class Codes>
inline constexpr bool kHasOffset = Codes::kType == DType::kQ4_K;

// Exact sums of 8-bit products inside a run, scaled in fp32.
template <class Codes>
struct Int8Format : Codes {
  using X = StagedInt8;
  LB_DEVICE static float dot(const typename Codes::Chunk& chunk, int i, const X& x) {
    float sum = 0;
    Codes::visit(chunk, i, [&](int piece, const u32x4& codes, float scale, float offset) {
      const u32x4 a = x.piece(piece);
      int products = 0;
      LB_UNROLL
      for (int j = 0; j < 4; ++j) products = dot4(int(codes[j]), int(a[j]), products);
      float term = scale * float(products);
      if constexpr (kHasOffset<Codes>) term = fma(offset, float(x.sum(piece)), term);
      sum = fma(term, x.scale(piece), sum);
    });
    return sum;
  }
};

// Weights expanded, everything in fp32.
template <class Codes>
struct F32Format : Codes {
  using X = StagedF32;
  LB_DEVICE static float dot(const typename Codes::Chunk& chunk, int i, const X& x) {
    float sum = 0;
    Codes::visit(chunk, i, [&](int piece, const u32x4& codes, float scale, float offset) {
      LB_UNROLL
      for (int j = 0; j < 4; ++j) {
        const f32x4 a = x.piece(4 * piece + j);
        LB_UNROLL
        for (int k = 0; k < 4; ++k) {
          const float code = float(int8_t(codes[j] >> 8 * k));
          sum = fma(kHasOffset<Codes> ? fma(scale, code, offset) : scale * code, a[k], sum);
        }
      }
    });
    return sum;
  }
};

}  // namespace lb::gpu
