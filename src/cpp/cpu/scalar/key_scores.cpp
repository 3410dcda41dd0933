// KeyScores: the softmax weights of the last rows, slot by slot, in two passes.
#include <algorithm>
#include <cmath>

#include "cpu/scalar/scalar.h"
#include "quant/kv_rows.h"

namespace lb::cpu::scalar {
namespace {

// Calls visit(row, head, slot, score) for every slot that a query of the KV head sees.
template <class Visit>
void for_each_score(const KeyScores& op, int kv_head, int begin, int end, Visit&& visit) {
  const KvLayer& cache = op.cache;
  const int dim = cache.head_dim, group = op.n_heads / cache.n_kv_heads;
  for (int slot = begin; slot < end; ++slot) {
    const size_t page = cache.page_table[slot / kPageTokens];
    const uint8_t* head =
        static_cast<const uint8_t*>(cache.k) + (page * cache.n_kv_heads + kv_head) * kv_head_bytes(cache.k_type, dim);
    float k[kMaxHeadDim];
    quant::load_row(cache.k_type, head, slot % kPageTokens, dim, k);
    for (int t = std::max(0, slot - *op.n_past - op.first_row); t < op.rows; ++t)
      for (int h = kv_head * group; h < (kv_head + 1) * group; ++h) {
        const float* q = op.q + (long(t) * op.n_heads + h) * dim;
        float score = 0;
        for (int i = 0; i < dim; ++i) score += q[i] * k[i];
        visit(t, h, slot, score * op.scale);
      }
  }
}

}  // namespace

void key_sums(const KeyScores& op, int kv_head, int begin, int end, float* parts, std::byte*) {
  for_each_score(op, kv_head, begin, end, [&](int t, int h, int, float score) {
    float &m = parts[2 * (t * op.n_heads + h)], &l = parts[2 * (t * op.n_heads + h) + 1];
    const float largest = std::max(m, score);
    l = l * std::exp(m - largest) + std::exp(score - largest);
    m = largest;
  });
}

void key_scores(const KeyScores& op, int kv_head, int begin, int end, const float* sums, std::byte*) {
  for_each_score(op, kv_head, begin, end, [&](int t, int h, int slot, float score) {
    const float m = sums[2 * (t * op.n_heads + h)], l = sums[2 * (t * op.n_heads + h) + 1];
    float& best = op.scores[long(t) * op.stride + slot];
    best = std::max(best, std::exp(score - m) / l);
  });
}

}  // namespace lb::cpu::scalar
