// KeyScores. Tasks are parts of the context. The parts depend on the context's length alone, so results do not depend
// on the number of threads.
#include <cmath>
#include <limits>

#include "base/error.h"
#include "cpu/kernels.h"
#include "cpu/tasks.h"
#include "ops/key_scores.h"

namespace lb {

size_t key_scores_thread_scratch(int rows, int n_heads, int n_kv_heads, int head_dim) {
  const size_t queries = size_t(rows) * (n_heads / n_kv_heads), dim = (head_dim + 15) / 16 * 16;
  return sizeof(float) * ((queries + 2 * kPageTokens) * dim + queries * 2 * kPageTokens);
}

void CpuStream::run(const KeyScores& op) {
  LB_ASSERT(op.cache.key_tail == 0);
  const int n_slots = *op.n_past + op.first_row + op.rows, n_pages = (n_slots + kPageTokens - 1) / kPageTokens;
  const int n_parts = std::min(n_pages, kKeyScoreParts), n_queries = op.rows * op.n_heads;
  const size_t scratch = key_scores_thread_scratch(op.rows, op.n_heads, op.cache.n_kv_heads, op.cache.head_dim);
  const long values = long(n_slots) * n_queries * op.cache.head_dim;
  // Calls visit(kv_head, first slot, end) for each page of a part.
  const auto for_pages = [&](int part, auto&& visit) {
    for (int page = n_pages * part / n_parts; page < n_pages * (part + 1) / n_parts; ++page)
      for (int h = 0; h < op.cache.n_kv_heads; ++h)
        visit(h, page * kPageTokens, std::min(n_slots, (page + 1) * kPageTokens));
  };
  cpu::for_tasks(pool(), n_parts, values, [&](int part, int thread) {
    float* sums = op.parts + long(part) * n_queries * 2;
    for (int i = 0; i < n_queries; ++i) sums[2 * i] = -std::numeric_limits<float>::infinity(), sums[2 * i + 1] = 0;
    for_pages(part, [&](int kv_head, int begin, int end) {
      kernels().key_sums(op, kv_head, begin, end, sums, thread_scratch(thread, scratch));
    });
  });
  // Merges the sums of all parts into the first part's.
  for (int i = 0; i < n_queries; ++i) {
    float &m = op.parts[2 * i], &l = op.parts[2 * i + 1];
    for (int part = 1; part < n_parts; ++part) {
      const float* other = op.parts + (long(part) * n_queries + i) * 2;
      if (other[1] == 0) continue;
      const float largest = std::max(m, other[0]);
      l = l * std::exp(m - largest) + other[1] * std::exp(other[0] - largest);
      m = largest;
    }
  }
  cpu::for_tasks(pool(), n_parts, values, [&](int part, int thread) {
    for_pages(part, [&](int kv_head, int begin, int end) {
      kernels().key_scores(op, kv_head, begin, end, op.parts, thread_scratch(thread, scratch));
    });
  });
}

}  // namespace lb
