// KeyScores: for each of a few rows, the softmax weight of every slot of a long context, as the maximum over all heads
// (ops/key_scores.h).
//
// key_sums_kernel: grid of context parts and KV heads. A block finds the maximum and the sum over its part for each
// query of its KV head. key_scores_kernel: grid of context parts. A block merges the sums of all parts, computes the
// scores of its slots again, head by head, and raises p.scores to their weights. Each lane handles a slot, each warp
// every fourth row.
// Bound: fp32 arithmetic, 2 passes of 2 head_dim flops per query and slot; K is read once per pass.
#include "dialect.h"

#include "gpu/attention/kv_load.h"
#include "gpu/attention/shape.h"
#include "gpu/warp_sums.h"

namespace lb::gpu {

inline constexpr float kLog2E = 1.44269504f, kNothingSeen = -__builtin_inff();

// Pages [begin, end) of a context part; n_slots: slots of the whole context.
struct KeyPart {
  int begin, end, n_parts, n_slots;
  LB_DEVICE KeyPart(const KeyScores& p, int part) : n_slots(*p.n_past + p.first_row + p.rows) {
    const int n_pages = (n_slots + kPageTokens - 1) / kPageTokens;
    n_parts = min(n_pages, kKeyScoreParts);
    begin = part < n_parts ? n_pages * part / n_parts : 0;
    end = part < n_parts ? n_pages * (part + 1) / n_parts : 0;
  }
};

// Reads kKeySlots slots of K to shared memory, [kKeySlots][head_dim + 4]; zeros from slot n_slots on.
LB_DEVICE void read_keys(float* to, const KvLayer& cache, int kv_head, int slot, int n_slots) {
  const int dim = cache.head_dim, shift = scale_shift(cache.k_type, dim);
  const KvRowBytes bytes = row_bytes(cache.k_type, dim);
  uint8_t* head = head_of(cache.k, bytes, cache, page_of(cache, slot), kv_head);
  with_kv_type(cache.k_type, [&](auto tag) {
    for (int i = 8 * thread_id(); i < kKeySlots * dim; i += 8 * kKeyThreads) {
      const int row = i / dim, column = i % dim;
      f32x4 x[2] = {};
      if (slot + row < n_slots)
        load_eight<tag.kType, FromGlobal>(row_of(head, bytes, (slot + row) % kPageTokens), column, shift, x);
      store(to + row * (dim + 4) + column, x[0]);
      store(to + row * (dim + 4) + column + 4, x[1]);
    }
  });
}

// Computes the scores of a KV head's queries with the slots of a part, as exponents of 2. For each tile of slots and
// each row of the warp, calls visit(row, head, score) for each head, with the score of the lane's slot or -inf; then
// end_row(row, slot).
template <class Visit, class EndRow>
LB_DEVICE void for_each_score(const KeyScores& p, const KeyPart& part, int kv_head, float* shared, Visit&& visit,
                              EndRow&& end_row) {
  const int dim = p.cache.head_dim, stride = dim + 4, group = p.n_heads / p.cache.n_kv_heads;
  const int rows_each = key_rows(group);
  float *q = shared, *keys = q + rows_each * group * stride;
  const float scale = p.scale * kLog2E;
  for (int first = 0; first < p.rows; first += rows_each) {
    const int n_rows = min(rows_each, p.rows - first);
    block_barrier();  // the previous queries are no longer read
    for (int i = 4 * thread_id(); i < n_rows * group * dim; i += 4 * kKeyThreads) {
      const int query = i / dim, row = first + query / group, head = kv_head * group + query % group;
      f32x4 x = load<f32x4>(p.q + (long(row) * p.n_heads + head) * dim + i % dim);
      LB_UNROLL
      for (int j = 0; j < 4; ++j) x[j] *= scale;
      store(q + query * stride + i % dim, x);
    }
    for (int tile = part.begin * kPageTokens; tile < min(part.end * kPageTokens, part.n_slots); tile += kKeySlots) {
      block_barrier();
      read_keys(keys, p.cache, kv_head, tile, part.n_slots);
      block_barrier();
      const int slot = tile + lane();
      for (int r = warp(); r < n_rows; r += kKeyThreads / 32) {
        const bool is_seen = slot <= *p.n_past + p.first_row + first + r;
        for (int h = 0; h < group; h += 4) {
          float sums[4] = {};
          for (int d = 0; d < dim; d += 4) {
            const auto k = load<f32x4>(keys + lane() * stride + d);
            LB_UNROLL
            for (int j = 0; j < 4; ++j) {
              const auto x = load<f32x4>(q + (r * group + min(h + j, group - 1)) * stride + d);
              sums[j] = fma(x[0], k[0], fma(x[1], k[1], fma(x[2], k[2], fma(x[3], k[3], sums[j]))));
            }
          }
          LB_UNROLL
          for (int j = 0; j < 4; ++j)
            if (h + j < group) visit(first + r, kv_head * group + h + j, is_seen ? sums[j] : kNothingSeen);
        }
        end_row(first + r, slot);
      }
    }
  }
}

LB_KERNEL(key_sums_kernel, KeyScores, kKeyThreads, 1) {
  dependents_may_launch();
  wait_for_previous();
  const KeyPart part(p, block_id());
  float* sums = p.parts + long(block_id()) * p.rows * p.n_heads * 2;
  if (part.begin == part.end) return;
  const int group = p.n_heads / p.cache.n_kv_heads;
  float* state = dynamic_shared<float>();  // [rows, group, 2]
  for (int i = thread_id(); i < p.rows * group; i += kKeyThreads) {
    store(state + 2 * i, kNothingSeen);
    store(state + 2 * i + 1, 0.0f);
  }
  const int kv_head = block_id_y();
  for_each_score(
      p, part, kv_head, state + key_state(p.rows, p.n_heads),
      [&](int row, int head, float score) {
        float* own = state + 2 * (row * group + head - kv_head * group);
        const float m = load<float>(own), largest = max(m, warp_max(score));
        if (largest == kNothingSeen) return;
        const float sum = warp_sum(exp2_fast(score - largest));
        if (lane() == 0) {
          store(own, largest);
          store(own + 1, fma(load<float>(own + 1), exp2_fast(m - largest), sum));
        }
        warp_barrier();
      },
      [](int, int) {});
  block_barrier();
  for (int i = thread_id(); i < p.rows * group; i += kKeyThreads) {
    float* to = sums + 2 * (i / group * p.n_heads + kv_head * group + i % group);
    to[0] = load<float>(state + 2 * i);
    to[1] = load<float>(state + 2 * i + 1);
  }
}

LB_KERNEL(key_scores_kernel, KeyScores, kKeyThreads, 1) {
  dependents_may_launch();
  wait_for_previous();
  const KeyPart part(p, block_id());
  if (part.begin == part.end) return;
  float* state = dynamic_shared<float>();  // [rows, n_heads, 2]: maximum and 1 / sum over the whole context
  const int n_queries = p.rows * p.n_heads;
  for (int i = thread_id(); i < n_queries; i += kKeyThreads) {
    float m = kNothingSeen, l = 0;
    for (int other = 0; other < part.n_parts; ++other) m = max(m, p.parts[2 * (long(other) * n_queries + i)]);
    for (int other = 0; other < part.n_parts; ++other) {
      const float* from = p.parts + 2 * (long(other) * n_queries + i);
      l = fma(from[1], exp2_fast(from[0] - m), l);
    }
    store(state + 2 * i, m);
    store(state + 2 * i + 1, 1 / l);
  }
  block_barrier();
  for (int kv_head = 0; kv_head < p.cache.n_kv_heads; ++kv_head) {
    float best = 0;
    for_each_score(
        p, part, kv_head, state + key_state(p.rows, p.n_heads),
        [&](int row, int head, float score) {
          const float* own = state + 2 * (row * p.n_heads + head);
          best = max(best, exp2_fast(score - load<float>(own)) * load<float>(own + 1));
        },
        [&](int row, int slot) {
          if (slot <= *p.n_past + p.first_row + row) {
            float* at = p.scores + long(row) * p.stride + slot;
            *at = max(*at, best);
          }
          best = 0;
        });
  }
}

}  // namespace lb::gpu
