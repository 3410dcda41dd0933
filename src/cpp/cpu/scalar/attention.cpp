// Attention over the paged KV cache with online softmax, one query and one slot at a time.
#include <algorithm>
#include <cmath>
#include <tuple>

#include "cpu/scalar/scalar.h"
#include "cpu/tree.h"
#include "quant/kv_rows.h"

namespace lb::cpu::scalar {
namespace {

// One KV head's part of the page that holds a token slot.
uint8_t* head_of(void* data, KvType type, const KvLayer& cache, int kv_head, int slot) {
  const size_t page = cache.page_table[slot / kPageTokens];
  return static_cast<uint8_t*>(data) + (page * cache.n_kv_heads + kv_head) * kv_head_bytes(type, key_dim_of(cache));
}

}  // namespace

void kv_append(const KvAppend& op, int begin, int end) {
  const KvLayer& cache = op.cache;
  for (int r = begin; r < end; ++r)
    for (int h = 0; h < cache.n_kv_heads; ++h) {
      const int slot = *op.n_past + r, row = slot % kPageTokens, dim = key_dim_of(cache);
      const long from = (long(r) * cache.n_kv_heads + h) * dim;
      quant::store_row(cache.k_type, op.k + from, dim, head_of(cache.k, cache.k_type, cache, h, slot), row);
      if (cache.key_tail > 0) continue;
      quant::store_row(cache.v_type, op.v + from, dim, head_of(cache.v, cache.v_type, cache, h, slot), row);
    }
}

void attention(const Attention& op, int kv_head, int row_begin, int row_end, int begin, int end, float* m, float* l,
               float* o, std::byte*) {
  const KvLayer& cache = op.cache;
  const int dim = cache.head_dim, key_dim = key_dim_of(cache);
  const int group = op.n_heads / cache.n_kv_heads;
  const int n_past = *op.n_past;
  for (int r = row_begin; r < row_end; ++r)
    for (int h = kv_head * group; h < (kv_head + 1) * group; ++h, ++m, ++l, o += dim) {
      const float* q = op.q + (long(r) * op.n_heads + h) * key_dim;
      *m = -INFINITY;
      *l = 0;
      for (int i = 0; i < dim; ++i) o[i] = 0;
      for (int slot = 0, place = 0; slot < n_past + op.rows && place < end; ++slot) {
        const int row = slot - n_past;  // of this append
        if (row >= 0 && !(op.tree.ancestors ? op.tree.ancestors[r] >> row & 1 : row <= last_seen(op, r))) continue;
        const bool is_hidden =
            place++ < begin || slot < first_slot(op, n_past, r) || !is_selected(blocks_of(op, r, kv_head), slot);
        if (is_hidden) continue;
        float k[kMaxKeyDim], v[kMaxKeyDim];
        for (const auto& [x, pages, type] :
             {std::tuple(k, cache.k, cache.k_type), std::tuple(v, value_pages(cache), cache.v_type)})
          quant::load_row(type, head_of(pages, type, cache, kv_head, slot), slot % kPageTokens, key_dim, x);
        float score = 0;
        for (int i = 0; i < key_dim; ++i) score += q[i] * k[i];
        score *= op.scale;
        const float maximum = std::max(*m, score);
        const float shrink = std::exp(*m - maximum);
        const float weight = std::exp(score - maximum);
        *m = maximum;
        *l = *l * shrink + weight;
        for (int i = 0; i < dim; ++i) o[i] = o[i] * shrink + weight * v[i];
      }
    }
}

void attention_add(int n, int head_dim, const float* from_m, const float* from_l, const float* from_o, float* m,
                   float* l, float* o) {
  for (int i = 0; i < n; ++i, from_o += head_dim, o += head_dim) {
    if (from_m[i] == -INFINITY) continue;
    const float maximum = std::max(m[i], from_m[i]);
    const float shrink = std::exp(m[i] - maximum), weight = std::exp(from_m[i] - maximum);
    m[i] = maximum;
    l[i] = l[i] * shrink + weight * from_l[i];
    for (int d = 0; d < head_dim; ++d) o[d] = o[d] * shrink + weight * from_o[d];
  }
}

void attention_finish(const Attention& op, int head_begin, int head_end, int row_begin, int row_end, const float* l,
                      const float* o) {
  const int dim = op.cache.head_dim;
  for (int r = row_begin; r < row_end; ++r)
    for (int h = head_begin; h < head_end; ++h, ++l, o += dim) {
      float* y = op.o + (long(r) * op.n_heads + h) * dim;
      const float* gate = op.gate ? op.gate + r * op.gate_row_stride + h * op.gate_head_stride : nullptr;
      for (int i = 0; i < dim; ++i) y[i] = o[i] / *l;
      if (is_rotated(op.cache.v_type))
        for (int i = 0; i < dim; i += rotated_group(dim)) quant::unrotate(y + i, rotated_group(dim));
      for (int i = 0; gate != nullptr && i < dim; ++i) y[i] *= sigmoid(gate[i]);
    }
}

}  // namespace lb::cpu::scalar
