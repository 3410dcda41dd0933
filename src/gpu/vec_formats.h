// How a thread of the mat-vec reads and multiplies each weight type, from the planes of quant/planes.h. A format has
//   kValues  of a row in one piece: 16 bytes of codes and what belongs to them
//   Piece    those bytes, in registers
//   Rows     where a thread's pieces of one weight row lie: read(ahead) is the piece `ahead` further, advance(n) goes
//            on by n rows
//   X        the values of x that a piece meets, in registers for the whole launch
//   dot      of a piece with its X
#pragma once

#include "launch/linear_shape.h"
#include "quant/planes.h"

namespace lb::gpu {

// The place of one row in plane i of a weight matrix.
LB_DEVICE const uint8_t* plane_row(const void* w, const quant::PlaneLayout& layout, int i, int row) {
  return static_cast<const uint8_t*>(w) + layout.offset[i] + size_t(row) * layout.row_bytes[i];
}

template <DType kType_>
struct PlainFormat {
  static constexpr DType kType = kType_;
  static constexpr int kValues = kType == DType::kF32 ? 4 : 8;
  using Piece = u32x4;

  struct Rows {
    const uint8_t* values = nullptr;
    size_t row_bytes = 0;
    Rows() = default;
    LB_DEVICE Rows(const void* w, int n_out, int n_in, int row, int piece) {
      const quant::PlaneLayout layout = quant::plane_layout(kType, n_out, n_in);
      row_bytes = layout.row_bytes[0];
      values = plane_row(w, layout, 0, row) + 16 * piece;
    }
    LB_DEVICE Piece read(int ahead) const { return load_stream<u32x4>(values + 16 * ahead); }
    LB_DEVICE void advance(int n) { values += n * row_bytes; }
  };

  struct X {
    float x[kValues] = {};
    LB_DEVICE void read(const LinearVec& p, int row, int piece) {
      const int n_in = p.group.products[0].n_in, first = piece * kValues;
      const float* from = p.group.products[0].x + long(row) * n_in + first;
      if (first + kValues <= n_in && reinterpret_cast<uintptr_t>(from) % 16 == 0) {
        LB_UNROLL
        for (int i = 0; i < kValues; i += 4) {
          const f32x4 v = load<f32x4>(from + i);
          LB_UNROLL
          for (int j = 0; j < 4; ++j) x[i + j] = v[j];
        }
      } else {
        LB_UNROLL
        for (int i = 0; i < kValues; ++i) x[i] = first + i < n_in ? from[i] : 0.0f;
      }
    }
  };

  LB_DEVICE static float dot(const Piece& piece, const X& x, int) {
    float even = 0, odd = 0;
    LB_UNROLL
    for (int i = 0; i < 4; ++i) {
      if constexpr (kType == DType::kF32) {
        (i % 2 ? odd : even) = fma(quant::float_of(piece[i]), x.x[i], i % 2 ? odd : even);
      } else {
        even = fma(low(piece[i]), x.x[2 * i], even);
        odd = fma(high(piece[i]), x.x[2 * i + 1], odd);
      }
    }
    return even + odd;
  }

 private:
  LB_DEVICE static float low(uint32_t pair) {
    return kType == DType::kF16 ? to_f32(f16{uint16_t(pair)}) : quant::float_of(pair << 16);
  }
  LB_DEVICE static float high(uint32_t pair) {
    return kType == DType::kF16 ? to_f32(f16{uint16_t(pair >> 16)}) : quant::float_of(pair & 0xffff0000u);
  }
};

// Rounded x of a piece of kValues codes, 16 or 32, within one run. kBits: 8 or 16.
template <int kValues, int kBits>
struct RoundedX {
  static constexpr int kWords = kValues / 4;
  int high[kWords] = {}, low[kBits == 16 ? kWords : 1] = {};
  float scale = 0, sum = 0;

  LB_DEVICE void read(const LinearVec& p, int row, int piece) {
    const long first = long(row) * p.group.products[0].n_in + long(piece) * kValues;
    LB_UNROLL
    for (int i = 0; i < kWords; i += 4) {
      copy(high + i, p.x.high + first + 4 * i);
      if constexpr (kBits == 16) copy(low + i, p.x.low + first + 4 * i);
    }
    scale = p.x.scale[first / kRoundRun];
    sum = p.x.sum[first / kRoundRun];
  }

  // Of codes with the 4-value words of x from `from` on, in units of scale: exact integers, but for the last division.
  template <int kCount>
  LB_DEVICE float dot(const uint32_t (&codes)[kCount], int from) const {
    int a = 0, b = 0;
    LB_UNROLL
    for (int i = 0; i < kCount; ++i) {
      a = dot4(int(codes[i]), high[from + i], a);
      if constexpr (kBits == 16) b = dot4(int(codes[i]), low[from + i], b);
    }
    return kBits == 16 ? float(a) + float(b) * (1 / 254.0f) : float(a);
  }

 private:
  LB_DEVICE static void copy(int* words, const int8_t* from) {
    const i32x4 v = load<i32x4>(from);
    LB_UNROLL
    for (int j = 0; j < 4; ++j) words[j] = v[j];
  }
};

// Codes in plane 0, an f16 scale for each run of 32 in plane 1.
struct ScaledPiece {
  u32x4 codes = {};
  f16 d = {};
};
template <DType kType, int kValues>
struct ScaledRows {
  const uint8_t* codes = nullptr;
  const uint8_t* scales = nullptr;
  int code_bytes = 0, scale_bytes = 0;
  ScaledRows() = default;
  LB_DEVICE ScaledRows(const void* w, int n_out, int n_in, int row, int piece) {
    const quant::PlaneLayout layout = quant::plane_layout(kType, n_out, n_in);
    code_bytes = int(layout.row_bytes[0]);
    scale_bytes = int(layout.row_bytes[1]);
    codes = plane_row(w, layout, 0, row) + 16 * piece;
    scales = plane_row(w, layout, 1, row) + piece * kValues / kRoundRun * 2;
  }
  LB_DEVICE ScaledPiece read(int ahead) const {  // ahead: a multiple of 32
    return {load_stream<u32x4>(codes + 16 * ahead), load_cached<f16>(scales + ahead * kValues / kRoundRun * 2)};
  }
  LB_DEVICE void advance(int n) {
    codes += long(n) * code_bytes;
    scales += long(n) * scale_bytes;
  }
};

template <int kBits>
struct Q8_0Format {
  static constexpr DType kType = DType::kQ8_0;
  static constexpr int kValues = 16;
  using Piece = ScaledPiece;
  using Rows = ScaledRows<kType, kValues>;
  using X = RoundedX<kValues, kBits>;
  LB_DEVICE static float dot(const Piece& piece, const X& x, int) {
    return to_f32(piece.d) * x.scale * x.dot(piece.codes.v, 0);
  }
};

// The low nibbles of 16 bytes meet the first half of a run, the high ones the second.
template <class X>
LB_DEVICE float dot_nibbles(const u32x4& codes, const X& x) {
  uint32_t nibbles[8];
  LB_UNROLL
  for (int i = 0; i < 4; ++i) {
    nibbles[i] = codes[i] & 0x0f0f0f0fu;
    nibbles[4 + i] = codes[i] >> 4 & 0x0f0f0f0fu;
  }
  return x.dot(nibbles, 0);
}

template <int kBits>
struct Q4_0Format {
  static constexpr DType kType = DType::kQ4_0;
  static constexpr int kValues = 32;
  using Piece = ScaledPiece;
  using Rows = ScaledRows<kType, kValues>;
  using X = RoundedX<kValues, kBits>;
  LB_DEVICE static float dot(const Piece& piece, const X& x, int) {
    return to_f32(piece.d) * (x.scale * dot_nibbles(piece.codes, x) - 8.0f * x.sum);  // codes are less 8
  }
};

template <int kBits>
struct Q4_KFormat {
  static constexpr DType kType = DType::kQ4_K;
  static constexpr int kValues = 32;
  struct Piece {
    u32x4 codes = {}, scales = {};
  };
  struct Rows {
    const uint8_t* codes = nullptr;
    const uint8_t* scales = nullptr;
    int code_bytes = 0, scale_bytes = 0;
    Rows() = default;
    LB_DEVICE Rows(const void* w, int n_out, int n_in, int row, int piece) {
      const quant::PlaneLayout layout = quant::plane_layout(kType, n_out, n_in);
      code_bytes = int(layout.row_bytes[0]);
      scale_bytes = int(layout.row_bytes[1]);
      codes = plane_row(w, layout, 0, row) + 16 * piece;
      scales = plane_row(w, layout, 1, row) + piece / 8 * 16;
    }
    LB_DEVICE Piece read(int ahead) const {
      return {load_stream<u32x4>(codes + 16 * ahead), load_cached<u32x4>(scales + ahead * 2)};
    }
    LB_DEVICE void advance(int n) {
      codes += long(n) * code_bytes;
      scales += long(n) * scale_bytes;
    }
  };
  using X = RoundedX<kValues, kBits>;
  LB_DEVICE static float dot(const Piece& piece, const X& x, int place) {
    const uint32_t fields = quant::k4_fields(piece.scales.v, place % 8);
    const float d = to_f32(f16{uint16_t(piece.scales[0])}), dmin = to_f32(f16{uint16_t(piece.scales[0] >> 16)});
    return d * float(fields & 63) * x.scale * dot_nibbles(piece.codes, x) - dmin * float(fields >> 6) * x.sum;
  }
};

// Four bytes of 0..63 less 32 each, as signed bytes: no carry crosses a byte.
LB_DEVICE uint32_t bytes_less_32(uint32_t bytes) { return (bytes + 0x60606060u) ^ 0x80808080u; }

template <int kBits>
struct Q6_KFormat {
  static constexpr DType kType = DType::kQ6_K;
  static constexpr int kValues = 32;
  struct Piece {
    u32x4 low = {};
    u32x2 high = {};
    uint16_t scales = 0;  // of the two halves, signed bytes
    f16 d = {};
  };
  struct Rows {
    const uint8_t* planes[4] = {};
    int row_bytes[4] = {};
    Rows() = default;
    LB_DEVICE Rows(const void* w, int n_out, int n_in, int row, int piece) {
      const quant::PlaneLayout layout = quant::plane_layout(kType, n_out, n_in);
      LB_UNROLL
      for (int i = 0; i < 4; ++i) {
        row_bytes[i] = int(layout.row_bytes[i]);
        planes[i] = plane_row(w, layout, i, row);
      }
      planes[0] += 16 * piece;
      planes[1] += 8 * piece;
      planes[2] += 2 * piece;
      planes[3] += piece / 8 * 2;
    }
    LB_DEVICE Piece read(int ahead) const {
      return {load_stream<u32x4>(planes[0] + 16 * ahead), load_stream<u32x2>(planes[1] + 8 * ahead),
              load_cached<uint16_t>(planes[2] + 2 * ahead), load_cached<f16>(planes[3] + ahead / 4)};
    }
    LB_DEVICE void advance(int n) {
      LB_UNROLL
      for (int i = 0; i < 4; ++i) planes[i] += long(n) * row_bytes[i];
    }
  };
  using X = RoundedX<kValues, kBits>;
  LB_DEVICE static float dot(const Piece& piece, const X& x, int) {
    float sum = 0;
    LB_UNROLL
    for (int half = 0; half < 2; ++half) {
      uint32_t codes[4];
      LB_UNROLL
      for (int i = 0; i < 4; ++i) {
        const uint32_t high = piece.high[half] >> 2 * i & 0x03030303u;
        codes[i] = bytes_less_32((piece.low[i] >> 4 * half & 0x0f0f0f0fu) | high << 4);
      }
      sum = fma(float(int8_t(piece.scales >> 8 * half)), x.dot(codes, 4 * half), sum);
    }
    return to_f32(piece.d) * x.scale * sum;
  }
};

}  // namespace lb::gpu
