// Block merge of the decode kernels: merges the softmax states of the block's four warps, which have the same queries
// and different slots.
#pragma once

#include "gpu/attention/queries.h"

namespace lb::gpu {

template <int kQueries>
struct WarpMerge {
  static constexpr int kFloats = 2 * kQueries * (kAttentionWarps + 1);  // in shared memory

  float* m;  // [kAttentionWarps + 1][kQueries], of each warp, then of the block
  float* l;  // same layout; the block's entry is the factor that normalises o

  LB_DEVICE explicit WarpMerge(float* shared) : m(shared), l(shared + kFloats / 2) {}

  // Stores a warp's m and l of a query.
  LB_DEVICE void put(int query, float own_m, float own_l) const {
    store(m + warp() * kQueries + query, own_m);
    store(l + warp() * kQueries + query, own_l);
  }

  // Computes the block's m and factor. Called by every thread, with a barrier after put() and another after this call.
  LB_DEVICE void merge(const AttentionSplits& p, const Queries& queries, int split) const {
    const int query = thread_id();
    if (query >= kQueries) return;
    float top = kNothingSeen, sum = 0;
    for (int w = 0; w < kAttentionWarps; ++w) top = max(top, load<float>(m + w * kQueries + query));
    const float base = top == kNothingSeen ? 0.0f : top;
    for (int w = 0; w < kAttentionWarps; ++w)
      sum += load<float>(l + w * kQueries + query) * exp2_fast(load<float>(m + w * kQueries + query) - base);
    store(m + kAttentionWarps * kQueries + query, top);
    store(l + kAttentionWarps * kQueries + query, p.has_merge ? 1.0f : 1.0f / sum);
    if (p.has_merge && query < queries.n) write_softmax(p, queries, query, top, sum, split);
  }

  // The factor that rescales a query's o from a warp's maximum own_m to the block's maximum.
  LB_DEVICE float factor(int query, float own_m) const {
    const float top = load<float>(m + kAttentionWarps * kQueries + query);
    return exp2_fast(own_m - (top == kNothingSeen ? 0.0f : top)) * load<float>(l + kAttentionWarps * kQueries + query);
  }
};

// Adds the warps' partial o, [queries][stride] each, columns [first, first + n_columns), and writes the sums. Warp w's
// part starts w * part_bytes after `parts`.
LB_DEVICE void write_warp_sums(const AttentionSplits& p, const Queries& queries, int split, const void* parts,
                               size_t part_bytes, int stride, int first, int n_columns) {
  for (int i = 4 * thread_id(); i < queries.n * n_columns; i += 4 * n_threads()) {
    const int query = i / n_columns, column = i % n_columns;
    f32x4 sum = {};
    LB_UNROLL
    for (int w = 0; w < kAttentionWarps; ++w) {
      const auto* part = reinterpret_cast<const float*>(static_cast<const char*>(parts) + w * part_bytes);
      const auto v = load<f32x4>(part + query * stride + column);
      LB_UNROLL
      for (int j = 0; j < 4; ++j) sum[j] += v[j];
    }
    write_columns(p, queries, query, first + column, sum, split);
  }
}

}  // namespace lb::gpu
