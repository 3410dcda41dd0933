// WeightStore: the weights of a network on one shard. Each matrix has a slot (Matrix::slot). A table from slots to
// addresses exists on the host and in the stream's memory.
//
// No kernel reads the table yet: matrices never move, so launches, recordings and the megakernel's schedule hold their
// addresses directly. Experts move between slots of their matrices (ExpertSlots).
#pragma once

#include <memory>
#include <vector>

#include "base/memory.h"
#include "device/memory.h"
#include "ops/experts.h"

namespace lb {

class StagedExperts;

struct WeightStore {
  std::unique_ptr<Memory> memory;      // planes, vectors and the table; null: all weights stay in the mapped file
  std::vector<const void*> addresses;  // [slots] on the host
  const void* const* table = nullptr;  // [slots] the same, in the stream's memory
  // Experts that are not all in device memory: their slots, and host memory with all of them, which is pinned, or
  // pageable and staged.
  std::unique_ptr<Memory> expert_slots;
  std::vector<gpu::Buffer> experts;
  std::vector<std::unique_ptr<Memory>> pageable_experts;
  std::unique_ptr<Memory> expert_ring;
  std::shared_ptr<StagedExperts> staged;
  std::vector<const ExpertCounts*> expert_counts;  // of each layer with such experts, in host memory
};

}  // namespace lb
