// One head of the row's q, k or v, computed by a warp: the part of AttentionPrepare that split-K attention fuses.
#pragma once

#include "gpu/megakernel/mailbox.h"

namespace lb::gpu {

// One head of the row's q, k or v, normalised and rotated by a warp; a lane holds four columns of each 128. Norm
// weights are loaded before the wait. The rotation's table is loaded after the wait but before the projections arrive.
struct RowHead {
  static constexpr int kFours = kSplitMaxDim / 128, kPairsAhead = 2;
  MailboxSource source;
  int at[kFours];  // index of each group of four in its vector; negative: beyond the head
  bool has_norm;
  int n_pairs;  // pairs to rotate
  const float *cosines, *sines;
  f32x4 w[kFours];
  float cos[kPairsAhead], sin[kPairsAhead];

  LB_DEVICE static int column(int j) { return 4 * lane() + 128 * j; }

  // of_kind: negative, query head `head`; 0, K of kv_head; 1, V of kv_head.
  LB_DEVICE RowHead(const SplitTask& task, int of_kind, int head, int kv_head) {
    const AttentionPrepare& p = task.prepare;
    const int dim = p.cache.head_dim, first = of_kind < 0 ? head * int(p.u_head_stride) : kv_head * dim;
    const float* norm = of_kind < 0 ? p.q_norm : of_kind > 0 ? nullptr : p.k_norm;
    source = of_kind < 0 ? task.u_mailbox : of_kind > 0 ? task.v_mailbox : task.k_mailbox;
    has_norm = norm != nullptr;
    n_pairs = of_kind > 0 ? 0 : p.n_pairs;
    const bool has_own = of_kind < 0 && p.q_cos != nullptr;
    cosines = has_own ? p.q_cos : p.cos;
    sines = has_own ? p.q_sin : p.sin;
    LB_UNROLL
    for (int j = 0; j < kFours; ++j) {
      const bool is_there = column(j) < dim;
      at[j] = is_there ? first + column(j) : -1;
      w[j] = {1, 1, 1, 1};
      if (has_norm && is_there) w[j] = load_cached<f32x4>(norm + column(j));
    }
  }

  // Call after the wait: if the wait is a barrier, only then does the table belong to this token.
  LB_DEVICE void load_table() {
    LB_UNROLL
    for (int j = 0; j < kPairsAhead; ++j) {
      const int pair = min(lane() + 32 * j, n_pairs - 1);
      if (pair < 0) continue;
      cos[j] = cosines[pair];
      sin[j] = sines[pair];
    }
  }

  // scratch: [dim], private to the warp.
  LB_DEVICE void make(const AttentionPrepare& p, float* scratch, const PhaseWait& wait, f32x4 (&x)[kFours]) const {
    read_fours(wait, source, nullptr, at, x);
    if (has_norm) {
      float sum = 0;
      LB_UNROLL
      for (int j = 0; j < kFours; ++j) LB_UNROLL
      for (int i = 0; i < 4; ++i) sum += x[j][i] * x[j][i];
      const float scale = rsqrt_fast(warp_sum(sum) / float(p.cache.head_dim) + p.eps);
      LB_UNROLL
      for (int j = 0; j < kFours; ++j) LB_UNROLL
      for (int i = 0; i < 4; ++i) x[j][i] *= scale * w[j][i];
    }
    if (n_pairs == 0) return;
    LB_UNROLL
    for (int j = 0; j < kFours; ++j)
      if (at[j] >= 0) store(scratch + column(j), x[j]);
    warp_barrier();
    const int step = p.pairs == RopePairs::kHalves ? 1 : 2, other = step == 1 ? n_pairs : 1;
    const auto rotate = [&](int pair, float cosine, float sine) {
      if (pair >= n_pairs) return;
      float* one = scratch + step * pair;
      const float a = load<float>(one), b = load<float>(one + other);
      store(one, a * cosine - b * sine);
      store(one + other, b * cosine + a * sine);
    };
    LB_UNROLL
    for (int j = 0; j < kPairsAhead; ++j) rotate(lane() + 32 * j, cos[j], sin[j]);
    LB_UNROLL_BY(1)
    for (int pair = lane() + 32 * kPairsAhead; pair < n_pairs; pair += 32) rotate(pair, cosines[pair], sines[pair]);
    warp_barrier();
    LB_UNROLL
    for (int j = 0; j < kFours; ++j)
      if (at[j] >= 0) x[j] = load<f32x4>(scratch + column(j));
  }
};

}  // namespace lb::gpu
