// Prompts of NVFP4 weights by block-scaled mma.sync, in the body of gemm.h: the weights' codes and scales, unchanged,
// by x in NVFP4 (CastRows). The matrix unit scales each 16 products and adds in fp32. The factor of the weights' tensor
// and the factor of a row of x multiply the complete sum. Bound: arithmetic; a warp's weights stay in registers for all
// rows of the tile.
//
// A plane has two 16s of values in the low and high nibbles of its words, and an operand register has eight values of
// one 16: the same nibbles of two neighbouring words, in turns. x has values 0, 4, 1, 5, 2, 6, 3, 7 of each eight in
// the nibbles of a word.
#pragma once

#include "gpu/gemm/narrow_sums.h"
#include "gpu/gemm/products.h"
#include "narrow_matrix.h"

namespace lb::gpu {

// e4m3 scales as the matrix unit reads them: 480, which only planes have (0x7f), becomes 448.
LB_DEVICE uint32_t without_nan(uint32_t scales) {
  return scales - (((scales & 0x7f7f7f7fu) + 0x01010101u) >> 7 & 0x01010101u);
}

struct Fp4Product : NarrowSums<kFp4Outs, kWideRows> {
  static constexpr int kValues = kFp4Values;
  static constexpr DType kType = DType::kNVFP4;
  static constexpr int kXBytes = gemm_fp4_x(kTileRows);

  // The scales of the warp's outputs. A lane has the two words of one.
  struct Scales {
    static_assert(16 * kFrags == 32);
    uint32_t next[2];
    uint32_t* unpacked;  // [16 kFrags, 2]

    template <class Cursor>
    LB_DEVICE Scales(const Gemm& p, const Cursor& at, void* warp_memory)
        : unpacked(static_cast<uint32_t*>(warp_memory)) {
      read(p, at);
    }
    template <class Cursor>
    LB_DEVICE void read(const Gemm& p, const Cursor& at) {
      const int n_in = p.group.products[0].n_in, out = min(at.first_out + warp() * 32 + lane(), at.n_out - 1);
      const uint8_t* row = plane_row(kType, {at.w, at.n_out, n_in, out, 0}, 1);
      LB_UNROLL
      for (int i = 0; i < 2; ++i) {
        const int word = 2 * at.chunk + i;
        next[i] = word < n_in / 64 ? load_cached<uint32_t>(row + word * 4) : 0u;
      }
    }
    LB_DEVICE void unpack() const { store(unpacked + 2 * lane(), u32x2{without_nan(next[0]), without_nan(next[1])}); }
  };

  // A thread copies 16-byte pieces of rows, and the scales of a row.
  template <class Cursor>
  LB_DEVICE static void fetch_x(const Gemm& p, const Cursor& at, uint8_t* stage) {
    constexpr int kBytes = kValues / 2, kPieces = kBytes / 16, kStep = kGemmThreads / kPieces;
    const int rows = p.group.products[0].rows, thread = opaque(thread_id()), piece = thread % kPieces;
    const auto* x = static_cast<const uint8_t*>(p.x16);
    const long first = long(at.chunk) * padded_rows(rows);
    LB_UNROLL
    for (int i = 0; i < kTileRows; i += kStep) {
      const int row = i + thread / kPieces;
      copy_async<16>(stage + row * kStride + piece * 16, x + (first + at.x_row(p, row)) * kBytes + 16 * piece);
    }
    if (thread < kTileRows)
      copy_async<8>(stage + kTileRows * kStride + thread * 8,
                    x + fp4_x_scales_at(rows, p.group.products[0].n_in) + (first + at.x_row(p, thread)) * 8);
  }

  LB_DEVICE void add(const uint8_t* weights, const uint8_t* x, const uint32_t* scales, int) {
    constexpr int kSteps = kValues / 64;
    ByteHalf a[kFrags][kSteps][2];
    u32x2 a_scales[kFrags];
    LB_UNROLL
    for (int frag = 0; frag < kFrags; ++frag) {
      const CodeRows rows = code_rows<kType, kFrags, kValues>(weights, frag);
      LB_UNROLL
      for (int step = 0; step < kSteps; ++step) load_codes(a[frag][step], rows.plane[0] + step * 32, rows.stride[0]);
      a_scales[frag] = load<u32x2>(scales + 2 * (frag * 16 + lane() / 4 + lane() % 2 * 8));
    }
    LB_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      BytesB b[kSteps];
      load(b, x + tile * kByteRows * kStride, kStride);
      const u32x2 b_scales = load<u32x2>(x + kTileRows * kStride + (tile * kByteRows + lane() / 4) * 8);
      LB_UNROLL
      for (int frag = 0; frag < kFrags; ++frag) {
        LB_UNROLL
        for (int step = 0; step < kSteps; ++step)
          multiply_nvfp4(sums_[frag][tile], a[frag][step], b[step], a_scales[frag][step], b_scales[step]);
      }
    }
  }

  // Multiplies the sums by the factors of the weights' tensor and of the rows of x.
  template <class Cursor>
  LB_DEVICE void finish(const Gemm& p, const Cursor& at) {
    const Linear& first = p.group.products[0];
    const auto* row_scales = reinterpret_cast<const float*>(static_cast<const uint8_t*>(p.x16) +
                                                            fp4_x_row_scales_at(first.rows, first.n_in));
    LB_UNROLL
    for (int frag = 0; frag < kFrags; ++frag) {
      float w[2];
      LB_UNROLL
      for (int i = 0; i < 2; ++i) {
        const int out = min(at.first_out + (warp() * kFrags + frag) * 16 + lane() / 4 + 8 * i, at.n_out - 1);
        w[i] = load_cached<float>(plane_row(kType, {at.w, at.n_out, first.n_in, out, 0}, 2));
      }
      LB_UNROLL
      for (int tile = 0; tile < kTiles; ++tile) {
        for_each_sum([&](int, int row, int i, int, int n) {
          sums_[frag][tile][n] *= w[i] * load_cached<float>(row_scales + at.x_row(p, tile * kByteRows + row));
        });
      }
    }
  }

 private:
  static constexpr int kStride = gemm_stride(kValues / 2);

  // Codes of 16 outputs and 64 values. Lanes 0 and 1 of four have the low nibbles of a block's words, lanes 2 and 3 the
  // high ones.
  LB_DEVICE static void load_codes(ByteHalf (&a)[2], const uint8_t* from, int stride) {
    const uint8_t* row = from + lane() / 4 * stride + lane() % 2 * 8;
    const int shift = lane() % 4 / 2 * 4;
    LB_UNROLL
    for (int block = 0; block < 2; ++block) {
      LB_UNROLL
      for (int i = 0; i < 2; ++i) {
        const u32x2 words = load<u32x2>(row + 8 * i * stride + 16 * block);
        a[block].r[i] = (words[0] >> shift & 0x0f0f0f0fu) | (words[1] << (4 - shift) & 0xf0f0f0f0u);
      }
    }
  }
};

}  // namespace lb::gpu
