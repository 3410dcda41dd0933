// act() of MixExperts.
#pragma once

#include "gpu/activation.h"
#include "ops/experts.h"

namespace lb::gpu {

LB_DEVICE float expert_act(float gate, float up, float limit, bool is_gelu) {
  if (is_gelu) return gelu(gate) * up;
  if (limit <= 0) return silu(gate) * up;
  const float g = gate > limit ? limit : gate;  // keeps NaN
  const float u = up > limit ? limit : up < -limit ? -limit : up;
  return g * sigmoid(kClampedAlpha * g) * (u + 1.0f);
}

}  // namespace lb::gpu
