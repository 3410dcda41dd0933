// TopTokens: insertion into a sorted list, and a sum in fp64.
#include <algorithm>
#include <cmath>

#include "cpu/scalar/scalar.h"
#include "ops/sample_rules.h"

namespace lb::cpu::scalar {

void top_tokens(const TopTokens& op, int begin, int end) {
  for (int r = begin; r < end; ++r) {
    const float* logits = op.logits + long(r) * op.vocab;
    int32_t* ids = op.ids + long(r) * op.k;
    const auto precedes = [&](int a, int b) {  // a is the lower id
      return sampling::ordered(logits[a]) >= sampling::ordered(logits[b]);
    };
    int n = 0;
    for (int i = 0; i < op.vocab; ++i) {
      int at = n;
      while (at > 0 && !precedes(ids[at - 1], i)) --at;
      if (at == op.k) continue;
      n = std::min(n + 1, op.k);
      std::copy_backward(ids + at, ids + n - 1, ids + n);
      ids[at] = i;
    }
    const auto scaled = [&](int i) {
      const double l = double(op.scale) * logits[i];
      return op.softcap > 0 ? op.softcap * std::tanh(l / op.softcap) : l;
    };
    double sum = 0;
    for (int i = 0; i < op.vocab; ++i) sum += std::exp(scaled(i) - scaled(ids[0]));
    for (int i = 0; i < op.k; ++i)
      op.logprobs[long(r) * op.k + i] = float(scaled(ids[i]) - scaled(ids[0]) - std::log(sum));
  }
}

}  // namespace lb::cpu::scalar
