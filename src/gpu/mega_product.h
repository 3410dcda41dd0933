// A product's part: x is made from what precedes it by every block anew, which costs less than a phase of its own.
#pragma once

#include "activation.h"
#include "launch/megakernel_shape.h"
#include "linear_vec.h"
#include "round_run.h"

namespace lb::gpu {

// The norm weights that a thread needs first: they come from memory, what they meet from L2.
LB_DEVICE f32x4 first_weights(const ProductTask& p) {
  f32x4 w = {};
  if (p.from == XFrom::kRms && 4 * thread_id() < p.op.n_in) w = load_cached<f32x4>(p.w + 4 * thread_id());
  if (p.from == XFrom::kGatedRms && 4 * lane() < p.op.n_in / p.heads) w = load_cached<f32x4>(p.w + 4 * lane());
  return w;
}

// x as fp32, in shared memory. Ends with a barrier.
LB_DEVICE void stage_x(const ProductTask& p, const f32x4& first_w, float* x, float* scratch) {
  const int n = p.op.n_in;
  if (p.from == XFrom::kRms) {
    const int mine = 4 * thread_id();
    float sum = 0;
    for (int i = mine; i < n; i += 4 * n_threads()) {
      const f32x4 v = load<f32x4>(p.a + i);
      LB_UNROLL
      for (int j = 0; j < 4; ++j) sum += v[j] * v[j];
    }
    const float scale = rsqrt_fast(block_sum(sum, scratch) / float(n) + p.eps);
    for (int i = mine; i < n; i += 4 * n_threads()) {
      f32x4 v = load<f32x4>(p.a + i);
      const f32x4 w = i == mine ? first_w : load_cached<f32x4>(p.w + i);
      LB_UNROLL
      for (int j = 0; j < 4; ++j) v[j] = v[j] * scale * w[j];
      store(x + i, v);
    }
  } else if (p.from == XFrom::kGatedRms) {
    const int dim = n / p.heads;
    for (int head = warp(); head < p.heads; head += n_warps()) {
      const float* o = p.a + head * dim;
      float sum = 0;
      for (int i = 4 * lane(); i < dim; i += 128) {
        const f32x4 v = load<f32x4>(o + i);
        LB_UNROLL
        for (int j = 0; j < 4; ++j) sum += v[j] * v[j];
      }
      const float scale = rsqrt_fast(warp_sum(sum) / float(dim) + p.eps);
      for (int i = 4 * lane(); i < dim; i += 128) {
        f32x4 v = load<f32x4>(o + i);
        const f32x4 w = i == 4 * lane() ? first_w : load_cached<f32x4>(p.w + i), z = load<f32x4>(p.b + head * dim + i);
        LB_UNROLL
        for (int j = 0; j < 4; ++j) v[j] = v[j] * scale * w[j] * silu(z[j]);
        store(x + head * dim + i, v);
      }
    }
  } else {
    const float* from = p.from == XFrom::kPlain ? p.op.x : p.a;
    for (int i = 4 * thread_id(); i < n; i += 4 * n_threads()) {
      f32x4 v = load<f32x4>(from + i);
      if (p.from == XFrom::kSwiGlu) {
        const f32x4 up = load<f32x4>(p.b + i);
        LB_UNROLL
        for (int j = 0; j < 4; ++j) v[j] = silu(v[j]) * up[j];
      }
      store(x + i, v);
    }
  }
  block_barrier();
}

// Ends with a barrier.
LB_DEVICE void round_x(const float* x, int n_in, const RoundedRows& rounded) {
  for (int i = 4 * thread_id(); i - 4 * lane() < n_in; i += 4 * n_threads()) {  // in whole warps
    f32x4 v = {};
    if (i < n_in) v = load<f32x4>(x + i);
    round_four(rounded, i, v, i < n_in);
  }
  block_barrier();
}

// pool: product_pool_bytes(n_in).
template <class Format, int kBatch, class Wait>
LB_APART void product(const ProductTask& p, int part, float* sums, unsigned char* pool, Wait wait) {
  constexpr bool kIsRounded = quant::plane_format(Format::kType).block_values > 1;
  float* x = reinterpret_cast<float*>(pool);
  LinearVec vec = {};
  vec.group.products[0] = p.op;
  vec.group.products[0].x = x;
  vec.group.n = 1;
  vec.row_threads = p.row_threads;
  if constexpr (kIsRounded) vec.x = rounded_rows(pool + (size_t(p.op.n_in) * 4 + 15) / 16 * 16, 1, p.op.n_in, false);
  // No division: it would take longer than the whole wait.
  const int team = int(uint32_t(thread_id()) * p.team_step >> 20);
  const Teams teams = {p.row_threads, p.n_teams, team, thread_id() - team * p.row_threads};
  const int begin = part * p.rows_each + min(part, p.more), end = begin + p.rows_each + (part < p.more ? 1 : 0);
  multiply_rows<Format, 1, kBatch, true>(
      vec, p.op.w, p.op.n_out, begin, end, teams, 0, sums,
      [&] {
        const f32x4 first_w = first_weights(p);
        wait();
        stage_x(p, first_w, x, sums);
        if constexpr (kIsRounded) round_x(x, p.op.n_in, vec.x);
      },
      [&] { return Output{p.op.add, p.op.y}; });
}

}  // namespace lb::gpu
