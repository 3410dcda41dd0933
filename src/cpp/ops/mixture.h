// The ops of a layer with a mixture of experts.
#pragma once

#include "ops/experts.h"
#include "ops/linear.h"
#include "ops/rms_norm.h"

namespace lb {

// Ops in their order. A stream may fuse them: nothing else reads the values between `in` and `mix`.
struct MixtureLayer {
  RmsNorm in;
  LinearGroup routers;  // of in.y, or of its own norm: the logits, and the shared expert's gate
  RouteExperts route;
  LinearGroup shared_inputs;  // of in.y: gate and up; n == 0: no shared expert
  SwiGlu shared_act;
  LinearGroup shared_output;  // writes mix.shared
  MixExperts mix;
};

}  // namespace lb
