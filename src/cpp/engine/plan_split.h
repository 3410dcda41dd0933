// The plan of a model on several devices: contiguous layers on each, chosen by free memory, or a part of every layer;
// or the model on one device and its draft model on another.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "engine/open_models.h"
#include "engine/plan.h"

namespace lb {

struct SplitPlan {
  std::vector<NetworkPart> parts;  // one per device that is used, in the order of the shards
  MemoryPlan plan;
  std::vector<Models> ranks{};  // split by tensors: the model of each device, which has all layers; else empty
  // The draft model on a device of its own, with a target of which the device has embedding, final norm and head. It
  // has the first part, and the last of the plan's.
  std::optional<Models> drafter{};
};

// options.split = auto: the first device alone, if the whole model fits there with the wanted context (options.context,
// else the model's longest). Otherwise layers on all devices, so that each uses the same share of its free memory.
// Resolves options.context and options.kv_tokens, and caps options.prefill_chunk. tower: on the first device;
// null without images. Throws like EnginePlanner::plan(). options.split = tensor: a slice of the model and a whole
// draft model on every device, which decodes with graphs. draft_device: for the draft model; null: where the model is.
// has_own_chunk: options.prefill_chunk is the first device's; layers on several devices then take at most kStagedChunk
// rows.
SplitPlan make_split_plan(const OpenModels& opened, std::span<const DeviceSizes* const> devices,
                          const DeviceSizes* draft_device, EngineOptions& options, VisionTower* tower,
                          bool has_own_chunk);

// Rows of a chunk of a prompt that one device after the other computes. Devices compute at the same time once there are
// as many chunks as devices, so shorter chunks start sooner; on an H200 a 27B computes 512 rows at 95 % of the speed of
// 2,048.
inline constexpr int kStagedChunk = 512;

}  // namespace lb
