// Counts all memory of an engine and one session, and settles the context length.
#pragma once

#include "engine/backend.h"
#include "engine/memory_plan.h"
#include "engine/options.h"
#include "engine/plan_fit.h"
#include "models/vision_tower.h"

namespace lb {

// Plans the memory of a model on one device, or of the part of it that one of several devices has.
class EnginePlanner {
 public:
  // options: the planned ones may differ from them in lengths, numbers of sessions and experts in device memory. models
  // and sizes must outlive the planner. tower: null without images.
  EnginePlanner(const Models& models, const DeviceSizes& sizes, size_t file_bytes, const EngineOptions& options,
                const NetworkPart& part = {}, VisionTower* tower = nullptr);
  // Resolves options.context and options.kv_tokens, and caps options.prefill_chunk. Throws kMemory, whose message has
  // the sizes and the largest context that would fit.
  MemoryPlan plan(EngineOptions& options) const;
  // The same without a plan. Returns the longest context that fits.
  int settle(EngineOptions& options) const;
  // Whether memory suffices for options.context, which is given.
  bool fits(const EngineOptions& options) const;

 private:
  ContextDemand demand(const EngineOptions& options) const;
  FittedContext settle(const ContextDemand& demand, EngineOptions& options) const;

  const Models& models_;
  const DeviceSizes& sizes_;
  size_t file_bytes_;
  NetworkPart part_;
  std::vector<PlanEntry> images_;
  size_t image_bytes_ = 0;
  ScratchBytes scratch_;
};

// The entries of a vision tower; none without one. On a GPU its types are the device's.
std::vector<PlanEntry> tower_entries(VisionTower* tower, const DeviceSizes& sizes, const EngineOptions& options);
// The plan of a tower on a device of its own. Throws kMemory if it does not fit there.
MemoryPlan make_tower_plan(VisionTower& tower, const DeviceSizes& sizes, const EngineOptions& options);

// The longest rows that one device hands to the next.
size_t row_bytes(const Models& models, const EngineOptions& options);

// Buffers of a part's links to other devices.
size_t hand_over_bytes(const Models& models, const EngineOptions& options, const NetworkPart& part);

// The input of a step, which the last device of a model that is split by layers hands to the first.
size_t step_token_bytes();

// The longest tapped rows that the target's device hands to a draft model on another device.
size_t tap_bytes(const Models& models, const EngineOptions& options);

// A model that is split by tensors: the most values of one exchange between the ranks, and the bytes that each device
// needs for exchanges. models: a rank's.
long exchange_values(const Models& models, const EngineOptions& options);
size_t exchange_bytes(const Models& models, const EngineOptions& options);

// A session's state options, once the context is settled.
StateOptions state_options(const ModelOptions& options);

// Upper bounds on an engine's ops, which size its stream.
StreamNeeds stream_needs(const Models& models, const EngineOptions& options, const NetworkPart& part = {});

// Bytes of a session's StepRows; 0 without a draft model that reads them, or if the CPU decodes.
size_t step_row_bytes(const DraftModel* draft, const DeviceSizes& sizes, const Model& model,
                      const EngineOptions& options);

}  // namespace lb
