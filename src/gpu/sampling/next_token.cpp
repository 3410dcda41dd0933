// NextToken: ends a decode step on the device. Bound: latency of a write across the bus, for which nothing waits.
#include "dialect.h"

#include "gpu/batched.h"
#include "gpu/sampling/next_token.h"

namespace lb::gpu {

LB_DEVICE void end_step(const NextToken& p) {
  wait_for_previous();
  StepNumbers before = {};
  before.read(p);
  move_on(p, before, p.sampled->token);
  tell_host(p, before.n_written);
}

LB_KERNEL(next_token_kernel, NextToken, 32, 1) { end_step(p); }
LB_KERNEL(next_token_kernel_batched, Batched<NextToken>, 32, 1) { end_step(p.of[block_id_z()]); }

}  // namespace lb::gpu
