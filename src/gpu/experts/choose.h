// Kernels, grids and parameters of the ops on experts. Each choose() is pure. It throws, naming the op, if the pack has
// no kernel for the op.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <variant>

#include "gpu/experts/shape.h"
#include "gpu/gemm/choose.h"
#include "ops/experts.h"
#include "pack/launch.h"
#include "pack/target.h"

namespace lb::gpu {

inline constexpr int kMaxGridY = 65535;  // rows beyond it are taken by the same blocks

Launch choose(const RouteExperts& op, const Target& target);

// The launches of a MixExperts, in order: for_each_launch().
struct ExpertLaunches {
  RoundRows round;  // rows == 0: no matrix needs x rounded
  struct {
    Launch launch;
    ExpertGateUp params;
  } gate_up[2];
  int n_gate_up;
  Launch down;
  ExpertDown down_params;
};
// The launches for many rows, whose choices are grouped by expert.
struct GroupedLaunches {
  RoundRows round;                   // rows == 0: x is cast
  std::optional<NarrowLaunch> cast;  // of F16 and BF16 weights
  Launch group, gate_up, down, sum;
  GroupChoices group_params;
  ExpertGemm gate_up_params, down_params;
  SumChoices sum_params;
};
using MixLaunches = std::variant<ExpertLaunches, GroupedLaunches>;
MixLaunches choose(const MixExperts& op, void* scratch, const Target& target);

// Calls run(launch, params) for each launch, in launch order, except for round.
template <class Run>
void for_each_launch(const ExpertLaunches& launches, Run&& run) {
  for (int i = 0; i < launches.n_gate_up; ++i) run(launches.gate_up[i].launch, launches.gate_up[i].params);
  run(launches.down, launches.down_params);
}
template <class Run>
void for_each_launch(const GroupedLaunches& launches, Run&& run) {
  if (launches.cast) run(launches.cast->launch, launches.cast->params);
  run(launches.group, launches.group_params);
  run(launches.gate_up, launches.gate_up_params);
  run(launches.down, launches.down_params);
  run(launches.sum, launches.sum_params);
}

// From kMinGroupedRows rows, groups choices by expert if kernels read the types: gate and up of one type, 8-bit x.
// nullopt: a choice at a time.
inline constexpr int kMinGroupedRows = 9;
std::optional<GroupedLaunches> choose_grouped(const MixExperts& op, void* scratch, const std::string& what,
                                              const Target& target);

// Scratch bytes of a MixExperts.
size_t expert_scratch_bytes(int rows, int k, int dim, int ffn);
size_t grouped_scratch_bytes(int rows, int k, int dim, int ffn);

}  // namespace lb::gpu
