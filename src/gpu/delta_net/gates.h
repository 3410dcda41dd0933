// The gates of a value head: log decay g and beta (the gate part of DeltaPrepare).
#pragma once

#include "gpu/activation.h"
#include "ops/delta_net.h"

namespace lb::gpu {

// log(1 + e) for e in (0, 1], to one or two ulp: 2 atanh(s), s = e / (2 + e), by its series. s <= 1/3, so the omitted
// terms are below 2^-28.
LB_DEVICE float log1p_of_unit(float e) {
  const float s = e / (2.0f + e), s2 = s * s;
  float series = 1.0f / 15;
  series = fma(series, s2, 1.0f / 13);
  series = fma(series, s2, 1.0f / 11);
  series = fma(series, s2, 1.0f / 9);
  series = fma(series, s2, 1.0f / 7);
  series = fma(series, s2, 1.0f / 5);
  series = fma(series, s2, 1.0f / 3);
  return 2.0f * fma(series * s2, s, s);
}

LB_DEVICE float softplus(float x) { return max(x, 0.0f) + log1p_of_unit(exp_nonpositive(-abs(x))); }

LB_DEVICE float log_decay(float alpha, float a_neg, float dt_bias) { return a_neg * softplus(alpha + dt_bias); }

LB_DEVICE void prepare_gates(const DeltaPrepare& p, long row, int head) {
  float* g = p.g + row * p.n_v_heads + head;
  float* beta = p.beta + row * p.n_v_heads + head;
  *g = log_decay(*g, p.a_neg[head], p.dt_bias[head]);
  *beta = sigmoid(*beta);
}

}  // namespace lb::gpu
