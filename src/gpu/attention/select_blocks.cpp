// KeyMeans and SelectBlocks: selects the key blocks of a long context that each query block attends to
// (ops/select_blocks.h).
//
// key_means_kernel: grid of key blocks and KV heads; a thread sums eight columns of every n-th slot.
// Bound: bandwidth, K of the append once.
//
// select_blocks_*_kernel: grid of query blocks and KV heads; a block handles half a query block at a time. A first pass
// over the means finds each query's maximum and sum; a warp handles 16 queries. A second pass repeats the products with
// means as rows, so that the sum over queries is a row sum; a warp handles 16 means. Then one warp writes the list.
// Bound: matrix units, 4 head_dim flops per query and mean.
// Needs: nvidia
#include "dialect.h"

#include "gpu/attention/instances.h"
#include "gpu/attention/kv_load.h"
#include "gpu/attention/tile.h"
#include "gpu/warp_sums.h"

namespace lb::gpu {

LB_KERNEL(key_means_kernel, KeyMeans, kMeansThreads, 4) {
  dependents_may_launch();
  wait_for_previous();
  const KvLayer& cache = p.cache;
  const int n_past = *p.n_past, block = n_past / kSparseBlock + block_id(), kv_head = block_id_y();
  if (block >= (n_past + p.rows) / kSparseBlock) return;
  const int dim = cache.head_dim, n_pieces = dim / 8, n_groups = kMeansThreads / n_pieces;
  const int piece = thread_id() % n_pieces, group = thread_id() / n_pieces, shift = scale_shift(cache.k_type, dim);
  const KvRowBytes bytes = row_bytes(cache.k_type, dim);
  float* sums = dynamic_shared<float>();  // [n_groups, dim]
  if (group < n_groups)
    with_kv_type(cache.k_type, [&](auto tag) {
      f32x4 sum[2] = {};
      for (int i = group; i < kSparseBlock; i += n_groups) {
        const int slot = block * kSparseBlock + i;
        uint8_t* head = head_of(cache.k, bytes, cache, page_of(cache, slot), kv_head);
        f32x4 x[2];
        load_eight<tag.kType, FromGlobal>(row_of(head, bytes, slot % kPageTokens), 8 * piece, shift, x);
        LB_UNROLL
        for (int j = 0; j < 8; ++j) sum[j / 4][j % 4] += x[j / 4][j % 4];
      }
      store(sums + group * dim + 8 * piece, sum[0]);
      store(sums + group * dim + 8 * piece + 4, sum[1]);
    });
  block_barrier();
  for (int i = thread_id(); i < dim; i += kMeansThreads) {
    float sum = 0;
    for (int g = 0; g < n_groups; ++g) sum += load<float>(sums + g * dim + i);
    p.means[(long(kv_head) * dim + i) * p.max_blocks + block] = sum / kSparseBlock;
  }
}

LB_DEVICE int bits_set(uint32_t x) {
  x -= x >> 1 & 0x55555555;
  x = (x & 0x33333333) + (x >> 2 & 0x33333333);
  return ((x + (x >> 4)) & 0x0f0f0f0f) * 0x01010101 >> 24;
}

// Half a query block, and its buffers in shared memory.
template <int kDim>
struct Selection {
  static constexpr int kStride = operand_stride(kDim), kMeans = select_means(kDim);
  const SelectBlocks& p;
  f16 *q, *means;      // [kSelectQueries][kStride], scaled so that scores are exponents of 2; [kMeans][kStride]
  float *m, *inverse;  // [kSelectQueries] of each query: maximum, and 1 / sum
  int* n_seen;         // [kSelectQueries] blocks that end at or before the query's row; 0 beyond the last query
  float* totals;       // [list_size] scores of blocks
  int kv_head, n_past, first_row, n_rows;

  LB_DEVICE int group() const { return p.n_heads / p.n_kv_heads; }

  LB_DEVICE void stage_queries(int first) {
    const float scale = p.scale * kLog2E;
    for (int i = 4 * thread_id(); i < kSelectQueries * kDim; i += 4 * kAttentionThreads) {
      const int own = i / kDim, query = first + own, row = first_row + query / group();
      f32x4 x = {};
      if (query < n_rows * group())
        x = load<f32x4>(p.q + (long(row) * p.n_heads + kv_head * group() + query % group()) * kDim + i % kDim);
      Vec<f16, 4> rounded;
      LB_UNROLL
      for (int j = 0; j < 4; ++j) rounded[j] = to_f16(x[j] * scale);
      store(q + own * kStride + i % kDim, rounded);
      if (i % kDim == 0) store(n_seen + own, query < n_rows * group() ? (n_past + row + 1) / kSparseBlock : 0);
    }
  }

  // Stages the means of blocks [first, first + kMeans); zeros from `end` on.
  LB_DEVICE void stage_means(int first, int end) {
    block_barrier();
    for (int i = thread_id(); i < kMeans * kDim / 2; i += kAttentionThreads) {
      const int own = i % kMeans, column = i / kMeans * 2;
      const float* from = p.means + (long(kv_head) * kDim + column) * p.max_blocks + first + own;
      Vec<f16, 2> pair = {};
      if (first + own < end) pair[0] = to_f16(from[0]), pair[1] = to_f16(from[p.max_blocks]);
      store(means + own * kStride + column, pair);
    }
    block_barrier();
  }

  // Finds m and inverse. A warp handles 16 queries.
  LB_DEVICE void find_sums(int n_blocks) {
    float top[kLaneRows], sum[kLaneRows];
    int seen[kLaneRows];
    LB_UNROLL
    for (int i = 0; i < kLaneRows; ++i)
      top[i] = kNothingSeen, sum[i] = 0, seen[i] = load<int>(n_seen + 16 * warp() + lane_row(i));
    for (int first = 0; first < n_blocks; first += kMeans) {
      stage_means(first, n_blocks);
      FragmentC s[kMeans / 16];
      LB_UNROLL
      for (int j = 0; j < kMeans / 16; ++j) fill(s[j], 0);
      LB_UNROLL
      for (int d = 0; d < kDim; d += 16) {
        FragmentA<f16> a;
        load_shared(a, q + 16 * warp() * kStride + d, kStride);
        LB_UNROLL
        for (int j = 0; j < kMeans / 16; ++j) {
          FragmentB<f16> b;
          load_shared(b, means + 16 * j * kStride + d, kStride);
          multiply(s[j], a, b);
        }
      }
      float largest[kLaneRows];
      LB_UNROLL
      for (int i = 0; i < kLaneRows; ++i) largest[i] = top[i];
      LB_UNROLL
      for (int j = 0; j < kMeans / 16; ++j)
        for_each_row(s[j], [&](int i, int column, float& score) {
          if (first + 16 * j + column >= seen[i]) score = kNothingSeen;
          largest[i] = max(largest[i], score);
        });
      LB_UNROLL
      for (int i = 0; i < kLaneRows; ++i) {
        largest[i] = row_max(largest[i]);
        if (largest[i] > top[i]) sum[i] *= exp2_fast(top[i] - largest[i]);
        top[i] = largest[i];
        largest[i] = top[i] == kNothingSeen ? 0.0f : top[i];
      }
      LB_UNROLL
      for (int j = 0; j < kMeans / 16; ++j)
        for_each_row(s[j], [&](int i, int, float& score) { sum[i] += exp2_fast(score - largest[i]); });
    }
    LB_UNROLL
    for (int i = 0; i < kLaneRows; ++i) sum[i] = row_sum(sum[i]);
    FragmentC owner;
    for_each_row(owner, [&](int i, int column, float&) {
      if (column != 0) return;
      store(m + 16 * warp() + lane_row(i), top[i] == kNothingSeen ? 0.0f : top[i]);
      store(inverse + 16 * warp() + lane_row(i), sum[i] > 0 ? 1 / sum[i] : 0.0f);
    });
    block_barrier();
  }

  // Adds the queries' softmax weights of each block to `totals`. A warp handles 16 means of a tile.
  LB_DEVICE void add_weights(int n_blocks) {
    for (int first = 0; first < n_blocks; first += kMeans) {
      stage_means(first, n_blocks);
      if (16 * warp() >= kMeans) continue;
      FragmentC s[kSelectQueries / 16];
      LB_UNROLL
      for (int j = 0; j < kSelectQueries / 16; ++j) fill(s[j], 0);
      LB_UNROLL
      for (int d = 0; d < kDim; d += 16) {
        FragmentA<f16> a;
        load_shared(a, means + 16 * warp() * kStride + d, kStride);
        LB_UNROLL
        for (int j = 0; j < kSelectQueries / 16; ++j) {
          FragmentB<f16> b;
          load_shared(b, q + 16 * j * kStride + d, kStride);
          multiply(s[j], a, b);
        }
      }
      const int own = first + 16 * warp();
      float sum[kLaneRows] = {};
      LB_UNROLL
      for (int j = 0; j < kSelectQueries / 16; ++j)
        for_each_row(s[j], [&](int i, int column, float& score) {
          const int query = 16 * j + column;
          if (own + lane_row(i) < load<int>(n_seen + query))
            sum[i] += exp2_fast(score - load<float>(m + query)) * load<float>(inverse + query);
        });
      LB_UNROLL
      for (int i = 0; i < kLaneRows; ++i) sum[i] = row_sum(sum[i]);
      for_each_row(s[0], [&](int i, int column, float&) {
        const int block = own + lane_row(i);
        if (column == 0 && block < n_blocks) store(totals + block, load<float>(totals + block) + sum[i]);
      });
    }
    block_barrier();
  }
};

// Writes the list of selected blocks, as one warp: the first and last blocks, and all whose weight reaches alpha times
// the maximum.
LB_DEVICE void write_list(const SelectBlocks& p, const float* totals, int last_block, int32_t* list) {
  float largest = 0;
  for (int b = lane(); b <= last_block; b += 32) largest = max(largest, load<float>(totals + b));
  const float least = p.alpha * warp_max(largest);
  int n = 0;
  for (int first = 0; first <= last_block; first += 32) {
    const int b = first + lane();
    const bool is_in = b <= last_block && (b < kSparseSinks || b > last_block - kSparseWindow ||
                                           load<float>(totals + min(b, last_block)) >= least);
    const uint32_t votes = ballot(is_in);
    if (is_in) list[1 + n + bits_set(votes & ((1u << lane()) - 1))] = b;
    n += bits_set(votes);
  }
  if (lane() == 0) list[0] = n;
}

template <int kDim>
LB_DEVICE void select_blocks(const SelectBlocks& p) {
  using Half = Selection<kDim>;
  dependents_may_launch();
  wait_for_previous();
  const int group = p.n_heads / p.n_kv_heads, n_past = *p.n_past, kv_head = block_id_y();
  const int query_block = n_blocks() - 1 - block_id();  // longest query blocks first
  const int first_row = query_block * sparse_rows(group), n_rows = min(sparse_rows(group), p.rows - first_row);
  const int n_slots = n_past + first_row + n_rows, n_means = n_slots / kSparseBlock;
  const int last_block = (n_slots - 1) / kSparseBlock;
  f16* q = dynamic_shared<f16>();
  f16* means = q + kSelectQueries * Half::kStride;
  float* m = reinterpret_cast<float*>(means + Half::kMeans * Half::kStride);
  float* totals = m + 3 * kSelectQueries;
  Half half = {.p = p,
               .q = q,
               .means = means,
               .m = m,
               .inverse = m + kSelectQueries,
               .n_seen = reinterpret_cast<int*>(m + 2 * kSelectQueries),
               .totals = totals,
               .kv_head = kv_head,
               .n_past = n_past,
               .first_row = first_row,
               .n_rows = n_rows};
  for (int b = thread_id(); b <= last_block; b += kAttentionThreads) store(totals + b, 0.0f);
  block_barrier();
  for (int first = 0; first < n_rows * group; first += kSelectQueries) {
    half.stage_queries(first);
    block_barrier();
    half.find_sums(n_means);
    half.add_weights(n_means);
  }
  if (warp() == 0)
    write_list(p, totals, last_block, p.blocks + (long(query_block) * p.n_kv_heads + kv_head) * p.list_size);
}

#define X(kernel, kDim) \
  LB_KERNEL(kernel, SelectBlocks, kAttentionThreads, 2) { select_blocks<kDim>(p); }
LB_SELECT_BLOCKS(X)
#undef X

}  // namespace lb::gpu
