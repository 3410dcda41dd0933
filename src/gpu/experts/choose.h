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
#include "ops/mixture.h"
#include "pack/launch.h"
#include "pack/target.h"

namespace lb::gpu {

inline constexpr int kMaxGridY = 65535;  // rows beyond it are taken by the same blocks

Launch choose(const RouteExperts& op, const Target& target);

// The launches that bring missing experts to their slots. The products follow in as many groups, each with its own
// copies. n_groups == 0: all experts are in device memory.
struct SlotLaunches {
  Launch find, fill;
  FindExperts find_params;
  FillSlots fill_params;
  int n_groups;
  bool is_found;       // by the launch of RouteExperts
  bool products_copy;  // instead of fill
};

// The launches of a MixExperts, in order: for_each_launch().
struct ExpertLaunches {
  RoundRows round;  // rows == 0: no matrix needs x rounded
  struct {
    Launch launch;
    ExpertGateUp params;
  } gate_up[2];
  int n_gate_up;
  Launch down, sum;
  ExpertDown down_params;
  SumChoices sum_params;  // of several groups, whose down writes the sums of each choice
  SlotLaunches slots;
};
// The launches for many rows, whose choices are grouped by expert.
struct GroupedLaunches {
  RoundRows round;                   // rows == 0: x is cast
  std::optional<NarrowLaunch> cast;  // of F16 and BF16 weights
  Launch group, gate_up, down, sum;
  GroupChoices group_params;
  ExpertGemm gate_up_params, down_params;
  SumChoices sum_params;
  SlotLaunches slots;
};
using MixLaunches = std::variant<ExpertLaunches, GroupedLaunches>;
MixLaunches choose(const MixExperts& op, void* scratch, const Target& target);
// The launches of a layer of one row after its router: the shared expert's products are part of the others. Its norm
// rounds x. nullopt: each op has launches of its own.
std::optional<ExpertLaunches> choose_fused(const MixtureLayer& layer, void* scratch, const Target& target);

// The matrices of some experts in device memory, and their copies from host memory.
struct HeldExperts {
  void *gate, *up, *down;
  ExpertPieces pieces;
};

// The launches of a MixExperts for long prompts (FindStreamed): the products of a group, and the copies to its part of
// the ring, which run on another queue.
inline constexpr int kRingParts = 2;  // with four, prompts took 2 to 3 % longer on an H200
struct ExpertRing {
  std::byte* parts[kRingParts];  // memory for group_experts experts each, as planes
  int32_t* tables;               // [ring_table_bytes()]
  int group_experts;
};
struct StreamedLaunches {
  GroupedLaunches products;  // of experts that are all in device memory
  Launch find, copy;
  FindStreamed find_params;
  StreamExperts copy_params;
  int n_groups, slots_held;
  int first_part;  // where the first group's copies go
  HeldExperts parts[kRingParts];

  GroupedLaunches group(int number) const;
  StreamExperts copy_of(int number) const;  // number: 1 and more
  const HeldExperts& part_of(int number) const { return parts[(first_part + number - 1) % kRingParts]; }
};
// Experts of a part of the ring, and bytes of its tables.
int ring_experts(size_t largest_expert_bytes, int n_experts);
size_t ring_table_bytes(int n_experts, int group_experts);
// nullopt: the rows are few, or no kernel groups the types.
std::optional<StreamedLaunches> choose_streamed(const MixExperts& op, void* scratch, const ExpertRing& ring,
                                                int first_part, const Target& target);

// Calls multiply() for each group of experts, after the launches that bring the group to its slots.
template <class Run, class Multiply>
void for_each_group(const SlotLaunches& slots, Run&& run, Multiply&& multiply) {
  if (slots.n_groups == 0) return multiply();
  FindExperts find = slots.find_params;
  for (find.group = 0; find.group < slots.n_groups; ++find.group) {
    if (!slots.is_found) run(slots.find, find);
    if (!slots.products_copy) run(slots.fill, slots.fill_params);
    multiply();
  }
}
// Calls run(launch, params) for each launch, in launch order, except for round.
template <class Run>
void for_each_launch(const ExpertLaunches& launches, Run&& run) {
  for_each_group(launches.slots, run, [&] {
    for (int i = 0; i < launches.n_gate_up; ++i) run(launches.gate_up[i].launch, launches.gate_up[i].params);
    run(launches.down, launches.down_params);
  });
  if (launches.down_params.sums != nullptr) run(launches.sum, launches.sum_params);
}
template <class Run>
void for_each_launch(const GroupedLaunches& launches, Run&& run) {
  if (launches.cast) run(launches.cast->launch, launches.cast->params);
  for_each_group(launches.slots, run, [&] {
    run(launches.group, launches.group_params);
    run(launches.gate_up, launches.gate_up_params);
    run(launches.down, launches.down_params);
  });
  run(launches.sum, launches.sum_params);
}

// From kMinGroupedRows rows, groups choices by expert if kernels read the types: gate and up of one type, no 16-bit x.
// nullopt: a choice at a time.
inline constexpr int kMinGroupedRows = 17;
std::optional<GroupedLaunches> choose_grouped(const MixExperts& op, void* scratch, const std::string& what,
                                              const Target& target);

// A RouteExperts that also finds the missing experts of its MixExperts; nullopt: find_experts is a launch of its own.
struct RouteFindLaunch {
  Launch launch;
  RouteFindExperts params;
};
std::optional<RouteFindLaunch> choose_route_find(const RouteExperts& op, const Target& target);
SlotLaunches choose_slots(const MixExperts& op, const Target& target);
bool has_expert_slots(const Target& target);
// Experts in the memory of op's matrices.
inline int held_experts(const MixExperts& op) { return op.slots.n > 0 ? op.slots.n : op.n_experts; }
// The sum of the choices' sums.
SumChoices sum_of(const MixExperts& op, const float* sums);
Launch sum_launch(const SumChoices& sum, const std::string& what, const Target& target);

// Throws kUnsupported, with `what`, unless kernels read experts of this type.
void check_expert_type(DType type, const std::string& what);
// Scratch bytes of a MixExperts.
size_t expert_scratch_bytes(int rows, int k, int dim, int ffn);
size_t grouped_scratch_bytes(int rows, int k, int dim, int ffn);

}  // namespace lb::gpu
