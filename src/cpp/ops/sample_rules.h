// The arithmetic of sampling, compiled for host and device, so that every device draws the same token: the order of
// candidates, their weights, shares of weight, draws. Weights are integers, so sums do not depend on the order of
// addition. fp32 appears only where one correctly rounded operation is the whole step.
#pragma once

#include <stdint.h>

#include "quant/half.h"

namespace lb::sampling {

// --- mask, bias, penalties, temperature. A forbidden token's logit is -infinity and stays -infinity.

// mask: [mask_words(vocab)], bit id % 32 of word id / 32.
LB_FN bool allows(const uint32_t* mask, int id) { return mask[id >> 5] >> (id & 31) & 1; }

LB_FN float biased(float logit, float bias) { return logit + bias; }

// Repetition penalty.
LB_FN float repeated(float logit, float penalty) { return logit > 0 ? logit / penalty : logit * penalty; }

// Frequency and presence penalty of a token that was sampled `count` times.
LB_FN float counted(float logit, float frequency, float presence, int count) {
  return logit - __builtin_fmaf(frequency, float(count), presence);
}

// Below this temperature the sampler is greedy. Smaller ones would overflow fp32 when they divide ordinary logits, and
// give tokens within 3e-4 nat of the likeliest indistinguishable weights.
inline constexpr float kMinTemperature = 1e-5f;
LB_FN bool is_greedy(float temperature) { return temperature < kMinTemperature; }

// logit / temperature, clamped to finite values so that no difference is NaN.
LB_FN float tempered(float logit, float temperature) {
  constexpr float kMax = 3.40282347e38f;
  if (logit == -__builtin_inff()) return logit;
  const float x = logit / temperature;
  return x > kMax ? kMax : x < -kMax ? -kMax : x;
}

// --- order of candidates: the larger logit first, then the lower id

// Maps fp32 to an integer with the same order. -0 equals +0; NaN is below everything.
LB_FN uint32_t ordered(float x) {
  const uint32_t bits = x == 0 ? 0 : quant::bits_of(x);
  return x != x ? 0 : bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// The inverse of ordered().
LB_FN float from_ordered(uint32_t bits) { return quant::float_of(bits & 0x80000000u ? bits & 0x7fffffffu : ~bits); }

// --- weights

inline constexpr uint32_t kMaxDistance = 0x7fffffff;  // 32 nat and more

// largest - x, in units of 2^-26 nat.
LB_FN uint32_t distance(float largest, float x) {
  const float d = x == largest ? 0 : largest - x;
  return d < 31.9f ? uint32_t(d * 0x1p26f) : kMaxDistance;
}

LB_FN uint32_t high_product(uint32_t a, uint32_t b) { return uint32_t(uint64_t(a) * b >> 32); }

inline constexpr uint64_t kTopWeight = uint64_t(1) << 40;

// e^-distance in units of 2^-40, rounded to nearest; 0 from 28.1 nat on.
LB_FN uint64_t weight(uint32_t distance) {
  const uint64_t halvings = distance * 0x171547653u;  // log2(e) in units of 2^-32, so log2(1/weight) in 2^-58
  const uint32_t whole = uint32_t(halvings >> 58), f = uint32_t(halvings >> 26);
  // 2^-f by its Taylor series, alternating: the coefficients are ln(2)^k / k! in units of 2^-32, k = 10 to 1.
  uint32_t h = 0x1e;
  h = 0x1b5 - high_product(f, h);
  h = 0x162c - high_product(f, h);
  h = 0xffe6 - high_product(f, h);
  h = 0xa1849 - high_product(f, h);
  h = 0x576200 - high_product(f, h);
  h = 0x276556e - high_product(f, h);
  h = 0xe35846c - high_product(f, h);
  h = 0x3d7f7bff - high_product(f, h);
  h = 0xb17217f8 - high_product(f, h);
  const uint64_t power = (uint64_t(1) << 32) - high_product(f, h);
  return ((power << 8) + ((uint64_t(1) << whole) >> 1)) >> whole;
}

// --- shares of sums of at most 2^22 weights

// ceil(total * share); share in [0, 1].
LB_FN uint64_t share_of(uint64_t total, float share) {
  const uint64_t q = uint64_t(share * 0x1p32f);
  return (total >> 32) * q + (((total & 0xffffffffu) * q + 0xffffffffu) >> 32);
}

// Sum of weight * distance, as high * 2^32 + low, so that neither part overflows; and the sum of weights.
struct WeightedDistances {
  uint64_t high, low, weights;
};
LB_FN void add_to(WeightedDistances& sum, uint32_t distance, uint64_t weight) {
  const uint64_t product = weight * (distance >> 8);  // at most 2^57
  sum.high += product >> 32;
  sum.low += product & 0xffffffffu;
  sum.weights += weight;
}
// The mean distance. -log p of a candidate is its distance plus a constant, so this is the entropy minus that constant.
LB_FN uint32_t mean(const WeightedDistances& sum) {
  return uint32_t((double(sum.high) * 0x1p32 + double(sum.low)) / double(sum.weights) * 0x1p8);
}
// |-log p - entropy| of a candidate: the sort key of typical sampling.
LB_FN uint32_t atypicality(uint32_t distance, uint64_t weight, uint32_t mean) {
  return weight == 0 ? kMaxDistance : distance > mean ? distance - mean : mean - distance;
}

// --- draws: SplitMix64 (Steele, Lea and Flood, 2014) of the seed and the number of the draw

LB_FN uint64_t splitmix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// A uniform number in [0, 1), in units of 2^-53.
LB_FN uint64_t uniform(uint64_t seed, uint64_t draw) { return splitmix(splitmix(seed) + draw) >> 11; }

// floor(uniform * total). The drawn token is the first, by id, at which the running sum of weights exceeds it.
LB_FN uint64_t scaled_draw(uint64_t uniform, uint64_t total) {
  const uint64_t u = uniform << 11;
  const uint64_t a = u >> 32, b = u & 0xffffffffu, c = total >> 32, d = total & 0xffffffffu;
  const uint64_t middle = a * d + (b * d >> 32);
  return a * c + (middle >> 32) + (((middle & 0xffffffffu) + b * c) >> 32);
}

}  // namespace lb::sampling
