// CastRows to NVFP4: e2m1 numbers with an e4m3 scale per 16 values and a factor per row. A block has a row; a thread
// converts 16 values at a time. Bound: bandwidth, 4.6 bytes per value.
// Needs: mma_bf16, fp4
#include "dialect.h"

#include "gpu/gemm/store_cast.h"
#include "narrow_matrix.h"

namespace lb::gpu {

// Values [first, first + 16) of a row, whose factor is 1 / inverse. A value that is no number gives a scale that is
// none.
LB_DEVICE void store_fp4(const CastRows& p, int row, int first, const f32x4 (&v)[4], float inverse) {
  float nan_or_0 = 0;
  LB_UNROLL
  for (int i = 0; i < kCastValues; ++i) nan_or_0 = fma(v[i / 4][i % 4], 0.0f, nan_or_0);
  const fp8_e4m3 scale = to_fp8(largest_of(v, 0) * inverse * (1 / kMaxFp4));
  const float step = to_f32(scale), factor = step > 0 ? inverse / step : 0;
  u32x2 codes = {};
  LB_UNROLL
  for (int eight = 0; eight < 2; ++eight) {
    LB_UNROLL
    for (int i = 0; i < 4; ++i)
      codes[eight] |= to_fp4_pair(v[2 * eight][i] * factor, v[2 * eight + 1][i] * factor) << 8 * i;
  }
  const int chunk = first / kFp4Values, in_chunk = first % kFp4Values;
  const long at = long(chunk) * padded_rows(p.rows) + row;
  auto* y = static_cast<uint8_t*>(p.y);
  store(y + at * (kFp4Values / 2) + in_chunk / 2, codes);
  y[fp4_x_scales_at(p.rows, p.n_in) + at * (kFp4Values / 16) + in_chunk / 16] = nan_or_0 == 0 ? scale.bits : 0x7f;
}

// n_in is a multiple of 16. A row is read twice, the second time from L2.
LB_KERNEL(cast_rows_fp4_kernel, CastRows, kCastThreads, 1) {
  LB_SHARED(float, scratch, 32);
  const int row = block_id();
  const float* from = p.x + long(row) * p.n_in;
  dependents_may_launch();
  wait_for_previous();
  f32x4 v[4];
  const auto read = [&](int first) {
    LB_UNROLL
    for (int i = 0; i < 4; ++i) v[i] = first < p.n_in ? load<f32x4>(from + first + 4 * i) : f32x4{};
  };
  float largest = kLeastFp8Block;
  for (int first = first_value(0); first < p.n_in; first += kCastValues * n_threads()) {
    read(first);
    largest = largest_of(v, largest);
  }
  largest = block_max(largest, scratch);
  const float inverse = kMaxFp4 * kMaxFp8 / largest;
  if (thread_id() == 0)
    reinterpret_cast<float*>(static_cast<uint8_t*>(p.y) + fp4_x_row_scales_at(p.rows, p.n_in))[row] =
        largest * (1 / (kMaxFp4 * kMaxFp8));
  for (int first = first_value(0); first < tiled_values(p.n_in); first += kCastValues * n_threads()) {
    read(first);
    store_fp4(p, row, first, v, inverse);
  }
}

}  // namespace lb::gpu
