// Shard: the part of an engine or a scorer on one device: its backend, its stream, the turn of that stream, and the
// weights there. An engine's shard also has the buffers of its forward passes and the K and V of its pages. A model on
// several devices is divided by layers: each shard has a NetworkPart.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "engine/backend.h"
#include "engine/device.h"
#include "engine/pass_buffers.h"

namespace lb {

class Shard {
 public:
  Shard(std::shared_ptr<const Backend> backend, const StreamNeeds& needs, const NetworkPart& part = {});
  Shard(const Shard&) = delete;
  Shard& operator=(const Shard&) = delete;

  const Backend& backend() const { return *backend_; }
  Device& device() const { return backend_->device(); }
  Stream& stream() const { return *stream_; }
  DeviceTurn& turn() const { return turn_; }
  const NetworkPart& part() const { return part_; }

  // Copies the weights of this shard's part to the device and points the network at them. kept: as in Backend::load().
  void load(Network& network, int n_threads, const KeptWeights::Store* kept, const LoadProgress& progress);
  // The weights of each network loaded.
  std::span<const WeightStore> stores() const { return weights_; }
  // The weights of the first network loaded, in device memory; empty if they stay in the file's mapping.
  std::span<std::byte> weights() const;

  // Hits and copies of experts so far; 0 if all experts are in device memory. No lock is needed.
  ExpertCounts expert_counts() const;
  // Whether the system pinned the host memory of experts, if there are such experts.
  bool experts_are_pinned() const;

  // Engines only: makes the steps' buffers, and buffers for long prompt chunks if these have more rows than any step.
  void make_pass_buffers(const Models& models, const EngineOptions& options, EngineTurn& turn);
  static size_t pass_buffers_bytes(const Models& models, const EngineOptions& options, const NetworkPart& part);
  // Engines only: makes the K and V memory of n_pages pages for the layers of this shard that keep these rows.
  std::shared_ptr<const PageMemory> make_pages(std::span<const LayerShape> layers, KvRows rows,
                                               const StateOptions& options, int n_pages) const;
  PassBuffers& steps() const { return *steps_; }
  PassBuffers& prompts() const { return prompts_ ? *prompts_ : *steps_; }

 private:
  std::shared_ptr<const Backend> backend_;
  std::shared_ptr<Stream> stream_;
  NetworkPart part_;
  mutable DeviceTurn turn_;
  std::vector<WeightStore> weights_;  // of each network
  std::unique_ptr<PassBuffers> steps_, prompts_;
};

}  // namespace lb
