// Prompts of FP8 weights by mma.sync, in the body of gemm.h: e4m3 weights, unchanged, by e4m3 x (CastRows). A chunk is
// the 128 values of a scale. Its sums start from 0, keep kSumBits bits (narrow_matrix.h), and are scaled and added in
// fp32. Bound: arithmetic; a warp's weights stay in registers for all rows of the tile.
#pragma once

#include "gpu/gemm/narrow_sums.h"
#include "gpu/gemm/products.h"
#include "narrow_matrix.h"

namespace lb::gpu {

template <int kSumBits>
struct Fp8Product : NarrowSums<kFp8Outs, kFp8Rows> {
  static constexpr int kValues = kFp8Values;
  static constexpr DType kType = DType::kF8_E4M3;
  static constexpr int kXBytes = gemm_fp8_x(kTileRows);

  // The scales of the warp's outputs. A lane has one.
  struct Scales {
    static_assert(16 * kFrags == 32);
    float next;
    float* unpacked;  // [16 kFrags]

    template <class Cursor>
    LB_DEVICE Scales(const Gemm& p, const Cursor& at, void* warp_memory) : unpacked(static_cast<float*>(warp_memory)) {
      read(p, at);
    }
    template <class Cursor>
    LB_DEVICE void read(const Gemm& p, const Cursor& at) {
      const int out = min(at.first_out + warp() * 32 + lane(), at.n_out - 1);
      next = load_cached<float>(plane_row(kType, {at.w, at.n_out, p.group.products[0].n_in, out, 0}, 1) +
                                at.chunk * sizeof(float));
    }
    LB_DEVICE void unpack() const { store(unpacked + lane(), next); }
  };

  // A thread copies 16-byte pieces of rows, to their places without the swizzle, and one scale.
  template <class Cursor>
  LB_DEVICE static void fetch_x(const Gemm& p, const Cursor& at, uint8_t* stage) {
    constexpr int kPieces = kValues / 16, kStep = kGemmThreads / kPieces;
    const int rows = p.group.products[0].rows, thread = opaque(thread_id()), piece = thread % kPieces;
    const auto* x = static_cast<const uint8_t*>(p.x16);
    const long first = long(at.chunk) * padded_rows(rows);
    LB_UNROLL
    for (int i = 0; i < kTileRows; i += kStep) {
      const int row = i + thread / kPieces, x_row = at.x_row(p, row);
      copy_async<16>(stage + row * kStride + piece * 16, x + (first + x_row) * kValues + 16 * (piece ^ x_row % 8));
    }
    if (thread < kTileRows)
      copy_async<4>(stage + kTileRows * kStride + thread * 4,
                    x + fp8_x_scales_at(rows, p.group.products[0].n_in) + (first + at.x_row(p, thread)) * 4);
  }

  LB_DEVICE void add(const uint8_t* weights, const uint8_t* x, const float* scales, int) {
    constexpr int kSteps = kValues / 32;
    ByteHalf a[kFrags][kSteps][2];
    SumRowsA<float> w_scales[kFrags];
    LB_UNROLL
    for (int frag = 0; frag < kFrags; ++frag) {
      const CodeRows rows = code_rows<kType, kFrags, kValues>(weights, frag);
      LB_UNROLL
      for (int step = 0; step < kSteps; ++step) load(a[frag][step], rows.plane[0] + step * 32, rows.stride[0]);
      load(w_scales[frag], scales + frag * 16);
    }
    LB_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      BytesB b[kSteps / 2][2];
      LB_UNROLL
      for (int i = 0; i < kSteps / 2; ++i) load(b[i], x + tile * kByteRows * kStride + i * 64, kStride);
      SumRowsB x_scales;
      load(x_scales, reinterpret_cast<const float*>(x + kTileRows * kStride) + tile * kByteRows);
      LB_UNROLL
      for (int frag = 0; frag < kFrags; ++frag) {
        float chunk[4] = {};
        LB_UNROLL
        for (int step = 0; step < kSteps; ++step) multiply_fp8<kSumBits>(chunk, a[frag][step], b[step / 2][step % 2]);
        for_each_sum([&](int, int, int i, int j, int n) {
          sums_[frag][tile][n] = fma(chunk[n] * x_scales.v[j], w_scales[frag].v[i], sums_[frag][tile][n]);
        });
      }
    }
  }

 private:
  static constexpr int kStride = gemm_stride(kValues);
};

}  // namespace lb::gpu
