// Kernels, grids and parameters of the ops on experts. Each choose() is pure. It throws, naming the op, if the pack has
// no kernel for the op.
#pragma once

#include "gpu/experts/shape.h"
#include "ops/experts.h"
#include "pack/launch.h"
#include "pack/target.h"

namespace lb::gpu {

Launch choose(const RouteExperts& op, const Target& target);

// The launches of a MixExperts, in order. round.rows == 0: no matrix needs x rounded.
struct ExpertLaunches {
  RoundRows round;
  struct {
    Launch launch;
    ExpertGateUp params;
  } gate_up[2];
  int n_gate_up;
  Launch down;
  ExpertDown down_params;
};
ExpertLaunches choose(const MixExperts& op, void* scratch, const Target& target);
// Scratch bytes of a MixExperts.
size_t expert_scratch_bytes(int rows, int k, int dim, int ffn);

}  // namespace lb::gpu
