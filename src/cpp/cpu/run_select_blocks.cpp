// KeyMeans and SelectBlocks, as loops that any compiler vectorises: they cost a hundredth of the attention that they
// save.
#include <algorithm>
#include <cmath>
#include <cstddef>

#include "base/error.h"
#include "cpu/kernels.h"
#include "cpu/tasks.h"
#include "ops/select_blocks.h"
#include "quant/kv_rows.h"

namespace lb {
namespace {

void mean_of_block(const KeyMeans& op, int kv_head, int block) {
  const KvLayer& cache = op.cache;
  const int dim = cache.head_dim;
  float sums[kMaxHeadDim] = {}, k[kMaxHeadDim];
  for (int slot = block * kSparseBlock; slot < (block + 1) * kSparseBlock; ++slot) {
    const size_t page = cache.page_table[slot / kPageTokens];
    const uint8_t* head =
        static_cast<const uint8_t*>(cache.k) + (page * cache.n_kv_heads + kv_head) * kv_head_bytes(cache.k_type, dim);
    quant::load_row(cache.k_type, head, slot % kPageTokens, dim, k);
    for (int i = 0; i < dim; ++i) sums[i] += k[i];
  }
  for (int i = 0; i < dim; ++i) op.means[(long(kv_head) * dim + i) * op.max_blocks + block] = sums[i] / kSparseBlock;
}

// Adds a query's softmax weights of the first n blocks to `totals`.
void add_weights(const SelectBlocks& op, const float* q, int kv_head, int n, float* scores, float* totals) {
  std::fill_n(scores, n, 0.0f);
  for (int i = 0; i < op.head_dim; ++i) {
    const float* means = op.means + (long(kv_head) * op.head_dim + i) * op.max_blocks;
    const float x = q[i] * op.scale;
    for (int b = 0; b < n; ++b) scores[b] += x * means[b];
  }
  const float largest = *std::max_element(scores, scores + n);
  float sum = 0;
  for (int b = 0; b < n; ++b) sum += scores[b] = std::exp(scores[b] - largest);
  for (int b = 0; b < n; ++b) totals[b] += scores[b] / sum;
}

void select(const SelectBlocks& op, int query_block, int kv_head, float* scores, float* totals) {
  const int group = op.n_heads / op.n_kv_heads, n_rows = sparse_rows(group);
  const int first = query_block * n_rows, end = std::min(op.rows, first + n_rows), n_past = *op.n_past;
  const int last_block = (n_past + end - 1) / kSparseBlock;
  std::fill_n(totals, last_block + 1, 0.0f);
  for (int r = first; r < end; ++r)
    if (const int n = (n_past + r + 1) / kSparseBlock; n > 0)
      for (int h = kv_head * group; h < (kv_head + 1) * group; ++h)
        add_weights(op, op.q + (long(r) * op.n_heads + h) * op.head_dim, kv_head, n, scores, totals);
  const float least = op.alpha * *std::max_element(totals, totals + last_block + 1);
  int32_t* list = op.blocks + (long(query_block) * op.n_kv_heads + kv_head) * op.list_size;
  list[0] = 0;
  for (int b = 0; b <= last_block; ++b)
    if (b < kSparseSinks || b > last_block - kSparseWindow || totals[b] >= least) list[++list[0]] = b;
}

}  // namespace

size_t select_blocks_thread_scratch(int max_blocks) { return sizeof(float) * 2 * (size_t(max_blocks) + 1); }

void CpuStream::run(const KeyMeans& op) {
  const int first = *op.n_past / kSparseBlock, end = (*op.n_past + op.rows) / kSparseBlock;
  const int n_kv = op.cache.n_kv_heads;
  LB_ASSERT(end <= op.max_blocks && op.cache.key_tail == 0);
  cpu::for_tasks(pool(), (end - first) * n_kv, long(op.rows) * n_kv * op.cache.head_dim,
                 [&](int task, int) { mean_of_block(op, task % n_kv, first + task / n_kv); });
}

void CpuStream::run(const SelectBlocks& op) {
  const int n_blocks = (*op.n_past + op.rows - 1) / kSparseBlock + 1;
  LB_ASSERT(op.n_query_blocks == query_blocks(op.rows, op.n_heads / op.n_kv_heads));
  LB_ASSERT(n_blocks < op.list_size && n_blocks <= op.max_blocks + 1);
  cpu::for_tasks(pool(), op.n_query_blocks * op.n_kv_heads, long(op.rows) * op.n_heads * n_blocks * op.head_dim,
                 [&](int task, int thread) {
                   auto* scores =
                       reinterpret_cast<float*>(thread_scratch(thread, select_blocks_thread_scratch(op.max_blocks)));
                   select(op, task / op.n_kv_heads, task % op.n_kv_heads, scores, scores + op.max_blocks + 1);
                 });
}

}  // namespace lb
