// A warp's fp32 sums in the GEMMs of fp8 and fp4, in the layout of ByteSums.
#pragma once

#include "gpu/gemm/shape.h"

namespace lb::gpu {

template <int kTileOuts, int kTileRows_>
struct NarrowSums {
  static constexpr int kTileRows = kTileRows_, kFrags = kTileOuts / (16 * kGemmWarps);
  static constexpr int kTiles = kTileRows / kByteRows;
  static constexpr int kSubtileRows = kByteRows, kSubtiles = kFrags * kTiles;

  LB_DEVICE NarrowSums() {
    LB_UNROLL
    for (int i = 0; i < kFrags * kTiles * 4; ++i) sums_[i / 4 / kTiles][i / 4 % kTiles][i % 4] = 0;
  }
  LB_DEVICE void put(int subtile, float* to) {
    for_each_sum([&](int out, int row, int, int, int n) {
      float& sum = sums_[subtile / kTiles][subtile % kTiles][n];
      store(to + row * 16 + out, sum);
      sum = 0;
    });
  }

 protected:
  float sums_[kFrags][kTiles][4];
};

}  // namespace lb::gpu
