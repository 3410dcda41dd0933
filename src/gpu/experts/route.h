// A warp routes a row: the k experts with the largest logits, and their weights. A lane has the logits of every 32nd
// expert.
#pragma once

#include "gpu/activation.h"
#include "gpu/experts/shape.h"

namespace lb::gpu {

inline constexpr int kLaneExperts = kMaxExperts / 32;

// Keys order the experts: by logit, then the lower index first. NaN is below all numbers; 0 is no expert.
LB_DEVICE uint64_t expert_key(float logit, int expert) {
  const uint32_t bits = quant::bits_of(logit + 0.0f);  // -0 ties with 0
  const uint32_t ordered = logit != logit ? 0 : bits >> 31 ? ~bits : bits | 0x80000000u;
  return uint64_t(ordered) << 32 | ~uint32_t(expert);
}
LB_DEVICE int expert_of(uint64_t key) { return int(~uint32_t(key)); }
LB_DEVICE float logit_of_key(uint64_t key) {  // a NaN as 0, because its row's weights are NaN
  const uint32_t ordered = uint32_t(key >> 32);
  return ordered == 0 ? 0.0f : quant::float_of(ordered >> 31 ? ordered & 0x7fffffffu : ~ordered);
}

LB_DEVICE uint64_t warp_largest_key(uint64_t key) {
  LB_UNROLL
  for (int mask = 16; mask > 0; mask /= 2) {
    const uint64_t other = shuffle_xor(key, mask);
    key = key > other ? key : other;
  }
  return key;
}

LB_DEVICE void route(const RouteExperts& p, int row) {
  const auto logit_of = [&](int expert) {
    const float logit = p.logits[long(row) * p.n_experts + expert];
    return p.bias == nullptr ? logit : logit + p.bias[expert];
  };
  uint64_t keys[kLaneExperts];
  bool has_nan = false;
  LB_UNROLL
  for (int i = 0; i < kLaneExperts; ++i) {
    const int expert = lane() + 32 * i;
    keys[i] = 0;
    if (expert >= p.n_experts) continue;
    const float logit = logit_of(expert);
    has_nan |= logit != logit;
    keys[i] = expert_key(logit, expert);
  }
  has_nan = any(has_nan);
  float own = 0, largest = 0, chosen_sum = 0;  // own: the exponential of choice lane()
  for (int j = 0; j < p.k; ++j) {
    uint64_t best = 0;
    LB_UNROLL
    for (int i = 0; i < kLaneExperts; ++i) best = keys[i] > best ? keys[i] : best;
    best = warp_largest_key(best);
    LB_UNROLL
    for (int i = 0; i < kLaneExperts; ++i) keys[i] = keys[i] == best ? 0 : keys[i];
    const float logit = logit_of_key(best);
    if (j == 0) largest = logit;
    const float weight = exp_nonpositive(logit - largest);
    chosen_sum += weight;
    if (lane() == j) {
      own = weight;
      p.experts[long(row) * p.k + j] = expert_of(best);
    }
  }
  float sum = chosen_sum;
  if (!p.is_normalized) {
    sum = 0;
    for (int expert = lane(); expert < p.n_experts; expert += 32) sum += exp_nonpositive(logit_of(expert) - largest);
    sum = warp_sum(sum);
  }
  if (lane() >= p.k) return;
  const long at = long(row) * p.k + lane();
  float weight = own / sum;
  if (p.scale != nullptr) weight *= p.scale[p.experts[at]];
  p.weights[at] = has_nan ? quant::float_of(0x7fc00000u) : weight;
}

}  // namespace lb::gpu
