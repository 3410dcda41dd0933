// The plan of a model on one device, which may leave experts of a mixture in host memory.
#pragma once

#include "engine/plan.h"

namespace lb {

inline bool asks_for_slots(const EngineOptions& options) {
  return options.expert_slots > 0 || options.expert_memory > 0;
}

// EnginePlanner::plan() for one device, after Network::set_expert_slots(): as many as options.expert_slots or
// expert_memory say; else all experts, or, if they do not fit with a useful context, as many as fit. Settles
// options.expert_slots: 0, all. has_own_chunk: options.prefill_chunk is the device's; experts in host memory then make
// it longer.
MemoryPlan make_expert_plan(const Models& models, const DeviceSizes& sizes, size_t file_bytes, EngineOptions& options,
                            VisionTower* tower, bool has_own_chunk);

}  // namespace lb
