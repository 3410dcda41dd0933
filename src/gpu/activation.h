// exp, sigmoid and SiLU, accurate to about two ulp. exp_fast alone loses one bit for each doubling of |x|.
#pragma once

namespace lb::gpu {

// e^x for x <= 0 or NaN. Results below 2^-126 may be 0.
LB_DEVICE float exp_nonpositive(float x) {
  const float bounded = x < -150.0f ? -150.0f : x;
  const float whole = round_even(bounded * 1.44269504f);
  const float rest = fma(bounded, 1.92596303e-8f, fma(bounded, 1.44269504f, -whole));  // log2(e) in two parts
  return exp2_fast(rest) * exp2_fast(whole);
}

// 1 / (1 + e^-x). The intermediate e^-|x| cannot overflow.
LB_DEVICE float sigmoid(float x) {
  const float e = exp_nonpositive(-abs(x));
  return (x < 0 ? e : 1.0f) * rcp_fast(1.0f + e);
}

LB_DEVICE float silu(float x) { return x * sigmoid(x); }

// The tanh approximation.
LB_DEVICE float gelu(float x) {
  constexpr float kTwice = 2 * 0.7978845608f;  // 2 sqrt(2 / pi)
  return x * sigmoid(kTwice * (x + 0.044715f * x * x * x));
}

}  // namespace lb::gpu
