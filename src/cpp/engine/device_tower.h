// DeviceTower: the vision tower of an engine on its first GPU: weights, buffers and a stream of its own.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "engine/memory_plan.h"
#include "engine/options.h"
#include "engine/shard.h"
#include "models/vision_pass.h"

namespace lb {

class DeviceTower {
 public:
  // The plan's entries of a tower whose ops read the device's types.
  static std::vector<PlanEntry> entries(VisionTower& tower, const DeviceSizes& sizes, const EngineOptions& options);

  // Reserves memory and loads the weights.
  DeviceTower(std::shared_ptr<const Backend> backend, VisionTower& tower, const EngineOptions& options);

  // As VisionTower::encode().
  std::vector<float> encode(std::span<const uint8_t> rgb, int height, int width,
                            const std::function<bool()>& interrupted);

 private:
  VisionTower& tower_;
  std::unique_ptr<Shard> shard_;
  std::unique_ptr<Memory> memory_;
  std::unique_ptr<VisionPass> pass_;
};

}  // namespace lb
