// Vector body of TopTokens. Bandwidth bound: each logit is read twice, the second time from a cache. A vector enters
// the list of the best only if a lane may belong there.
#pragma once

#include "cpu/kernels.h"
#include "cpu/simd.h"
#include "ops/sample_rules.h"

namespace lb::cpu {
namespace {

// The best k logits so far, as keys in descending order: the larger logit first, then the lower id.
struct TopList {
  uint64_t keys[kMaxTopTokens];
  int n, k;

  void add(float logit, int id) {
    const uint64_t key = uint64_t(sampling::ordered(logit)) << 32 | uint32_t(~id);
    if (n == k && key < keys[k - 1]) return;
    int at = n < k ? n++ : k - 1;
    for (; at > 0 && keys[at - 1] < key; --at) keys[at] = keys[at - 1];
    keys[at] = key;
  }
  int id(int i) const { return int(~uint32_t(keys[i])); }
  // Only a NaN or a logit above the floor can enter the list. The floor is NaN until the list is full.
  float floor() const { return n == k ? sampling::from_ordered(uint32_t(keys[k - 1] >> 32)) : __builtin_nanf(""); }
};

// softcap * tanh(x / softcap) of scaled logits
inline vf scaled_logits(const TopTokens& op, vf logits) {
  const vf x = logits * op.scale;
  if (!(op.softcap > 0)) return x;
  return op.softcap * (1.0f - 2.0f / (exp(x * (2 / op.softcap)) + 1.0f));
}

inline bool any_enters(vf logits, float floor) {
  const vi stays = logits <= floor;
  int all = -1;
  for (int i = 0; i < kLanes; ++i) all &= stays[i];
  return all == 0;
}

void top_tokens(const TopTokens& op, int begin, int end) {
  constexpr int kBlock = 1024;  // values summed in fp32 before fp64 takes over
  for (int r = begin; r < end; ++r) {
    const float* logits = op.logits + long(r) * op.vocab;
    TopList top = {{}, 0, op.k};
    for (int i = 0; i < op.vocab; i += kLanes) {
      const int n = op.vocab - i < kLanes ? op.vocab - i : kLanes;
      if (n == kLanes && !any_enters(load(logits + i), top.floor())) continue;
      for (int j = 0; j < n; ++j) top.add(logits[i + j], i + j);
    }
    const float largest = scaled_logits(op, splat(logits[top.id(0)]))[0];
    double sum = 0;
    for (int first = 0; first < op.vocab; first += kBlock) {
      vf block = {};
      const int last = op.vocab - first < kBlock ? op.vocab : first + kBlock;
      for (int i = first; i < last; i += kLanes) {
        const vf weight = exp(scaled_logits(op, load(logits + i, last - i)) - largest);
        block += lane_index() < last - i ? weight : vf{};
      }
      sum += hsum(block);
    }
    const double log_sum = __builtin_log(sum);
    for (int i = 0; i < op.k; ++i) {
      op.ids[long(r) * op.k + i] = top.id(i);
      const float l = scaled_logits(op, splat(logits[top.id(i)]))[0];
      op.logprobs[long(r) * op.k + i] = float(double(l - largest) - log_sum);
    }
  }
}

}  // namespace
}  // namespace lb::cpu
