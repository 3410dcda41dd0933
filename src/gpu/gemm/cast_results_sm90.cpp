// CastResult: an RmsNorm, a GatedRmsNorm or a SwiGlu whose result only wgmma GEMMs read, cast to their x and not stored
// in fp32. A block per row; a thread keeps 16 neighbouring values of each pass in registers. Bound: bandwidth; a norm
// moves 6 bytes per value instead of 18, a SwiGlu 10 instead of 18.
// Needs: wgmma
#include "dialect.h"

#include "gpu/activation.h"
#include "gpu/gemm/instances.h"
#include "gpu/gemm/store_cast.h"

namespace lb::gpu {

LB_DEVICE float sum_of_squares(const f32x4 (&v)[4]) {
  float sum = 0;
  LB_UNROLL
  for (int i = 0; i < 4; ++i) {
    LB_UNROLL
    for (int j = 0; j < 4; ++j) sum += v[i][j] * v[i][j];
  }
  return sum;
}

struct OfRmsNorm {
  LB_DEVICE static void compute(const CastResult& p, int row, CastValues& v, float* scratch) {
    const int n = p.cast.n_in;
    read_values(p.cast.x + row * p.row_stride, n, v);
    float sum = 0;
    LB_UNROLL
    for (int pass = 0; pass < kCastPasses; ++pass) sum += sum_of_squares(v[pass]);
    const float scale = rsqrt_fast(block_sum(sum, scratch) / float(n) + p.eps);
    LB_UNROLL
    for (int pass = 0; pass < kCastPasses; ++pass) {
      if (first_value(pass) >= n) continue;
      LB_UNROLL
      for (int i = 0; i < 4; ++i) {
        const f32x4 w = load_cached<f32x4>(p.w + first_value(pass) + 4 * i);
        LB_UNROLL
        for (int j = 0; j < 4; ++j) v[pass][i][j] = v[pass][i][j] * scale * w[j];
      }
    }
  }
};

// Eight neighbouring lanes have a head.
struct OfGatedRmsNorm {
  LB_DEVICE static void compute(const CastResult& p, int row, CastValues& v, float*) {
    const int n = p.cast.n_in;
    const float* z = p.factor + row * p.row_stride;
    read_values(p.cast.x + row * p.row_stride, n, v);
    LB_UNROLL
    for (int pass = 0; pass < kCastPasses; ++pass) {
      float sum = sum_of_squares(v[pass]);
      LB_UNROLL
      for (int lanes = 1; lanes < 8; lanes *= 2) sum += shuffle_xor(sum, lanes);
      const float scale = rsqrt_fast(sum / float(kCastHead) + p.eps);
      const int first = first_value(pass);
      if (first >= n) continue;
      LB_UNROLL
      for (int i = 0; i < 4; ++i) {
        const f32x4 w = load_cached<f32x4>(p.w + first % kCastHead + 4 * i), gate = load<f32x4>(z + first + 4 * i);
        LB_UNROLL
        for (int j = 0; j < 4; ++j) v[pass][i][j] = v[pass][i][j] * scale * w[j] * silu(gate[j]);
      }
    }
  }
};

struct OfSwiGlu {
  LB_DEVICE static void compute(const CastResult& p, int row, CastValues& v, float*) {
    const int n = p.cast.n_in;
    const float* up = p.factor + row * p.row_stride;
    read_values(p.cast.x + row * p.row_stride, n, v);
    LB_UNROLL
    for (int pass = 0; pass < kCastPasses; ++pass) {
      if (first_value(pass) >= n) continue;
      LB_UNROLL
      for (int i = 0; i < 4; ++i) {
        const f32x4 factor = load<f32x4>(up + first_value(pass) + 4 * i);
        LB_UNROLL
        for (int j = 0; j < 4; ++j) v[pass][i][j] = silu(v[pass][i][j]) * factor[j];
      }
    }
  }
};

struct ToF16 {
  LB_DEVICE static void store(const CastRows& p, int row, const CastValues& v, float* scratch) {
    float largest = 0;
    LB_UNROLL
    for (int pass = 0; pass < kCastPasses; ++pass) largest = largest_of(v[pass], largest);
    const RowScale scale(block_max(largest, scratch));
    if (thread_id() == 0) store_f16_scale(p, row, scale.inverse);
    LB_UNROLL
    for (int pass = 0; pass < kCastPasses; ++pass)
      if (first_value(pass) < tiled_values(p.n_in)) store_f16(p, row, first_value(pass), v[pass], scale.factor);
  }
};

struct ToF8 {
  LB_DEVICE static void store(const CastRows& p, int row, const CastValues& v, float*) {
    LB_UNROLL
    for (int pass = 0; pass < kCastPasses; ++pass)
      store_fp8(p, row, first_value(pass), v[pass], first_value(pass) < p.n_in);
  }
};

// The type of F16 or BF16 weights, without scales.
struct ToPlain {
  LB_DEVICE static void store(const CastRows& p, int row, const CastValues& v, float*) {
    LB_UNROLL
    for (int pass = 0; pass < kCastPasses; ++pass) {
      if (first_value(pass) >= tiled_values(p.n_in)) continue;
      uint16_t numbers[kCastValues];
      LB_UNROLL
      for (int i = 0; i < kCastValues; ++i) numbers[i] = narrow(v[pass][i / 4][i % 4], p.type);
      store_tiled(p, row, first_value(pass), numbers);
    }
  }
};

template <class Of, class To>
LB_DEVICE void cast_result(const CastResult& p, float* scratch) {
  const int row = block_id();
  CastValues v;
  dependents_may_launch();
  wait_for_previous();
  Of::compute(p, row, v, scratch);
  To::store(p.cast, row, v, scratch);
}

#define X(kernel, Op, To)                          \
  LB_KERNEL(kernel, CastResult, kCastThreads, 1) { \
    LB_SHARED(float, scratch, 32);                 \
    cast_result<Of##Op, To>(p, scratch);           \
  }
LB_CAST_RESULTS(X)
#undef X

}  // namespace lb::gpu
