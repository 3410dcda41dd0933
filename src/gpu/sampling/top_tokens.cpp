// TopTokens: the k likeliest tokens of each row and their log probabilities, in one pass over the logits.
//
// top_tokens_slices_kernel, grid: slices of the vocabulary, rows. A thread keeps only its largest logit and its sum of
// e^(l - largest). The k best logits of a slice are in the parts of the k threads with the largest logits. The block
// rereads these parts, one vector per thread. top_tokens_kernel, a block per row, merges the slices.
// Bound: read bandwidth, 4 bytes per logit; latency for one row.
#include "dialect.h"

#include "gpu/elementwise/rows.h"
#include "gpu/sampling/search.h"
#include "gpu/sampling/top_tokens.h"

namespace lb::gpu {

inline constexpr int kTopWarps = kTopThreads / 32;
inline constexpr float kTopLog2E = 1.44269504f;

LB_DEVICE uint64_t key_of(uint32_t ordered_logit, int id) { return uint64_t(ordered_logit) << 32 | ~uint32_t(id); }
LB_DEVICE int id_of(uint64_t key) { return int(~uint32_t(key)); }
LB_DEVICE float logit_of(uint64_t key) { return from_ordered(uint32_t(key >> 32)); }

// Computes exponents as differences, (level(a) - level(b)) * unit, so that equal logits give exactly 0.
struct LogitScale {
  float scale, softcap;

  LB_DEVICE LogitScale(const TopTokens& op) : scale(op.scale), softcap(op.softcap) {}
  LB_DEVICE float unit() const { return softcap > 0 ? 1.0f : scale; }
  LB_DEVICE float level(float x) const {
    if (!(softcap > 0)) return x;
    return softcap * (1.0f - 2.0f * rcp_fast(exp_fast(2.0f * x * scale / softcap) + 1.0f));  // tanh
  }
  // sum * e^(a - b), where a is the level at which the sum was computed; -infinity marks an empty sum.
  LB_DEVICE float moved(float sum, float a, float b) const {
    return sum == 0 ? 0.0f : sum * exp2_fast((a - b) * (unit() * kTopLog2E));
  }
};

// The warp's k largest keys in descending order: calls put(i, key). Keys are unique; 0 means none.
template <int kOwn, class Put>
LB_DEVICE void warp_best(uint64_t (&own)[kOwn], int k, Put&& put) {
  for (int i = 0; i < k; ++i) {
    uint64_t top = 0;
    LB_UNROLL
    for (int j = 0; j < kOwn; ++j) top = larger(top, own[j]);
    top = warp_largest(top);
    LB_UNROLL
    for (int j = 0; j < kOwn; ++j) own[j] = own[j] == top ? 0 : own[j];
    put(i, top);
  }
}

// Writes the block's k largest keys to best[k], in descending order. scratch: [kTopWarps, kMaxTopTokens]
template <int kOwn>
LB_DEVICE void block_best(uint64_t (&own)[kOwn], int k, uint64_t* scratch, uint64_t* best) {
  warp_best(own, k, [&](int i, uint64_t key) {
    if (lane() == 0) store(scratch + warp() * kMaxTopTokens + i, key);
  });
  block_barrier();
  if (warp() == 0) {
    constexpr int kEach = kTopWarps * kMaxTopTokens / 32;
    uint64_t all[kEach];
    LB_UNROLL
    for (int j = 0; j < kEach; ++j) {
      const int at = lane() + 32 * j;
      all[j] = at % kMaxTopTokens < k ? load<uint64_t>(scratch + at) : 0;
    }
    warp_best(all, k, [&](int i, uint64_t key) {
      if (lane() == 0) store(best + i, key);
    });
  }
  block_barrier();
}

template <int kWidth>
LB_DEVICE void top_tokens_of_slice(const TopTokensInSlices& p, uint64_t* scratch, uint64_t* best, float* sums) {
  using V = Vec<float, kWidth>;
  constexpr int kMaxParts = kWidth == 4 ? kTopThreadParts : kTopThreadLogits;
  static_assert(kMaxTopTokens * kMaxParts * kWidth == 4 * kTopThreads, "four logits for each thread");
  const TopTokens& op = p.op;
  const LogitScale scale(op);
  const int first = block_id() * p.slice, n_parts = (min(first + p.slice, op.vocab) - first) / kWidth;
  const float* logits = op.logits + long(block_id_y()) * op.vocab + first;

  uint32_t top = 0;  // the thread's largest logit, as an ordered integer, and its id; 0 is NaN
  int top_id = first + thread_id() * kWidth;
  float level = -__builtin_inff(), sum = 0;  // level of the largest logit
  constexpr int kInFlight = 4;               // vectors that a thread loads ahead
  for (int begin = thread_id(); begin < n_parts; begin += kInFlight * kTopThreads) {
    V v[kInFlight] = {};
    LB_UNROLL
    for (int i = 0; i < kInFlight; ++i)
      if (begin + i * kTopThreads < n_parts) v[i] = load_cached<V>(logits + (begin + i * kTopThreads) * kWidth);
    LB_UNROLL
    for (int i = 0; i < kInFlight; ++i) {
      const int part = begin + i * kTopThreads;
      if (part >= n_parts) break;
      const uint32_t before = top;
      LB_UNROLL
      for (int j = 0; j < kWidth; ++j) {
        const uint32_t own = ordered(v[i][j]);
        top_id = own > top ? first + part * kWidth + j : top_id;
        top = own > top ? own : top;
      }
      if (top != before) {
        const float next = scale.level(from_ordered(top));
        sum = scale.moved(sum, level, next);
        level = next;
      }
      const float base = level == -__builtin_inff() ? 0.0f : level;
      LB_UNROLL
      for (int j = 0; j < kWidth; ++j) sum += exp2_fast((scale.level(v[i][j]) - base) * (scale.unit() * kTopLog2E));
    }
  }
  uint64_t key[1] = {thread_id() < n_parts ? key_of(top, top_id) : 0};
  block_best(key, op.k, scratch, best);

  const float largest = scale.level(logit_of(load<uint64_t>(best)));
  sum = block_sum(scale.moved(sum, level, largest), sums);

  // Rereads the parts of the threads with the largest logits.
  const int parts_each = (n_parts + kTopThreads - 1) / kTopThreads;
  uint64_t keys[4] = {};
  LB_UNROLL
  for (int i = 0; i < 4 / kWidth; ++i) {
    const int at = thread_id() + i * kTopThreads, candidate = at / parts_each;
    if (candidate >= op.k) continue;
    const uint64_t winner = load<uint64_t>(best + candidate);
    const int part = (id_of(winner) - first) / kWidth % kTopThreads + at % parts_each * kTopThreads;
    if (winner == 0 || part >= n_parts) continue;
    const V v = load_cached<V>(logits + part * kWidth);
    LB_UNROLL
    for (int j = 0; j < kWidth; ++j) keys[i * kWidth + j] = key_of(ordered(v[j]), first + part * kWidth + j);
  }
  block_best(keys, op.k, scratch, best);
  const long at = long(block_id_y()) * p.n_slices + block_id();
  if (thread_id() < op.k) p.keys[at * op.k + thread_id()] = load<uint64_t>(best + thread_id());
  if (thread_id() == 0) p.sums[at] = sum;
}

LB_KERNEL(top_tokens_slices_kernel, TopTokensInSlices, kTopThreads, 1) {
  LB_SHARED(uint64_t, scratch, kTopWarps* kMaxTopTokens);
  LB_SHARED(uint64_t, best, kMaxTopTokens);
  LB_SHARED(float, sums, 32);
  wait_for_previous();
  dependents_may_launch();
  is_aligned(p.op.logits, p.op.vocab) ? top_tokens_of_slice<4>(p, scratch, best, sums)
                                      : top_tokens_of_slice<1>(p, scratch, best, sums);
}

LB_KERNEL(top_tokens_kernel, TopTokensInSlices, kTopThreads, 1) {
  LB_SHARED(uint64_t, scratch, kTopWarps* kMaxTopTokens);
  LB_SHARED(uint64_t, best, kMaxTopTokens);
  LB_SHARED(float, sums, 32);
  static_assert(kMaxTopSlices * kMaxTopTokens <= 4 * kTopThreads && kMaxTopSlices <= kTopThreads);
  wait_for_previous();
  dependents_may_launch();
  const TopTokens& op = p.op;
  const LogitScale scale(op);
  const uint64_t* slices = p.keys + long(block_id()) * p.n_slices * op.k;
  uint64_t keys[4] = {};
  LB_UNROLL
  for (int i = 0; i < 4; ++i) {
    const int at = thread_id() + i * kTopThreads;
    if (at < p.n_slices * op.k) keys[i] = slices[at];
  }
  float level = 0, sum = 0;
  if (thread_id() < p.n_slices) {
    level = scale.level(logit_of(slices[thread_id() * op.k]));
    sum = p.sums[long(block_id()) * p.n_slices + thread_id()];
  }
  block_best(keys, op.k, scratch, best);
  const float largest = scale.level(logit_of(load<uint64_t>(static_cast<const uint64_t*>(best))));
  sum = block_sum(scale.moved(sum, level, largest), sums);
  if (thread_id() >= op.k) return;
  const uint64_t key = best[thread_id()];
  const long at = long(block_id()) * op.k + thread_id();
  op.ids[at] = id_of(key);
  op.logprobs[at] = (scale.level(logit_of(key)) - largest) * scale.unit() - log_fast(sum);
}

}  // namespace lb::gpu
