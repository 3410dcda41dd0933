// Attention over the paged KV cache with online softmax, one query and one slot at a time.
#include <algorithm>
#include <cmath>

#include "cpu/scalar/scalar.h"
#include "cpu/tree.h"
#include "quant/half.h"

namespace lb::cpu::scalar {
namespace {

float load(const void* data, DType type, long i) {
  switch (type) {
    case DType::kF16: return quant::f16_to_f32(static_cast<const uint16_t*>(data)[i]);
    case DType::kBF16: return quant::bf16_to_f32(static_cast<const uint16_t*>(data)[i]);
    default: return static_cast<const float*>(data)[i];
  }
}

void store(void* data, DType type, long i, float x) {
  switch (type) {
    case DType::kF16: static_cast<uint16_t*>(data)[i] = quant::f32_to_f16(x); break;
    case DType::kBF16: static_cast<uint16_t*>(data)[i] = quant::f32_to_bf16(x); break;
    default: static_cast<float*>(data)[i] = x;
  }
}

// Index of the first value of a token slot, in both K and V.
long slot_at(const KvLayer& cache, int kv_head, int slot) {
  const long page = cache.page_table[slot / kPageTokens];
  return ((page * cache.n_kv_heads + kv_head) * kPageTokens + slot % kPageTokens) * cache.head_dim;
}

}  // namespace

void kv_append(const KvAppend& op, int begin, int end) {
  const KvLayer& cache = op.cache;
  for (int r = begin; r < end; ++r)
    for (int h = 0; h < cache.n_kv_heads; ++h) {
      const long from = (long(r) * cache.n_kv_heads + h) * cache.head_dim;
      const long to = slot_at(cache, h, *op.n_past + r);
      for (int i = 0; i < cache.head_dim; ++i) {
        store(cache.k, cache.k_type, to + i, op.k[from + i]);
        store(cache.v, cache.v_type, to + i, op.v[from + i]);
      }
    }
}

void attention(const Attention& op, int kv_head, int row_begin, int row_end, int begin, int end, float* m, float* l,
               float* o, std::byte*) {
  const KvLayer& cache = op.cache;
  const int dim = cache.head_dim;
  const int group = op.n_heads / cache.n_kv_heads;
  const int n_past = *op.n_past;
  for (int r = row_begin; r < row_end; ++r)
    for (int h = kv_head * group; h < (kv_head + 1) * group; ++h, ++m, ++l, o += dim) {
      const float* q = op.q + (long(r) * op.n_heads + h) * dim;
      *m = -INFINITY;
      *l = 0;
      for (int i = 0; i < dim; ++i) o[i] = 0;
      for (int slot = 0, place = 0; slot < n_past + op.rows && place < end; ++slot) {
        const int row = slot - n_past;  // of this append
        if (row >= 0 && !(op.tree.ancestors ? op.tree.ancestors[r] >> row & 1 : row <= r)) continue;
        const bool is_hidden = place++ < begin || slot < first_slot(op, n_past, r);
        if (is_hidden) continue;
        const long at = slot_at(cache, kv_head, slot);
        float score = 0;
        for (int i = 0; i < dim; ++i) score += q[i] * load(cache.k, cache.k_type, at + i);
        score *= op.scale;
        const float maximum = std::max(*m, score);
        const float shrink = std::exp(*m - maximum);
        const float weight = std::exp(score - maximum);
        *m = maximum;
        *l = *l * shrink + weight;
        for (int i = 0; i < dim; ++i) o[i] = o[i] * shrink + weight * load(cache.v, cache.v_type, at + i);
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
      for (int i = 0; i < dim; ++i) y[i] = o[i] * ((gate ? sigmoid(gate[i]) : 1.0f) / *l);
    }
}

}  // namespace lb::cpu::scalar
