// Ends a decode step on the device. Bound: latency of a write across the bus, which nothing waits for.
#include "dialect.h"

#include "gpu/sampling/next_token.h"

namespace lb::gpu {

LB_KERNEL(next_token_kernel, NextToken, 32, 1) {
  wait_for_previous();
  StepNumbers before = {};
  before.read(p);
  move_on(p, before, p.sampled->token);
  tell_host(p, before.n_written);
}

}  // namespace lb::gpu
