// StagedExperts: how the experts of a network that are not all in device memory get there by way of other memory.
//   The ring: device memory for the experts of long prompts, which a queue of its own copies while the products of
//   earlier experts run.
//   The stage: pinned memory for experts in pageable host memory, which a device cannot read, on systems that do not
//   pin memory for all experts. A host thread copies them there.
// All layers share both.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "device/memory.h"
#include "device/queue.h"
#include "gpu/experts/choose.h"

namespace lb {

class StagedExperts {
 public:
  // stage_bytes: of the slots of a layer; 0: the device reads all experts in host memory.
  StagedExperts(const gpu::Device& device, const gpu::ExpertRing& ring, size_t stage_bytes);

  // --- the stage
  bool is_pageable() const { return stage_.has_value(); }
  // Where find_experts writes the experts to copy; null without a stage.
  ExpertFills* fills() const { return fills_ ? reinterpret_cast<ExpertFills*>(fills_->data()) : nullptr; }
  // Sends the copies of the experts in fills() to the queue. Returns the parameters of the launch that takes them from
  // there to the slots.
  gpu::FillSlots stage(const gpu::FillSlots& fill, int n_slots, const gpu::Queue& queue);

  // --- the ring
  const gpu::ExpertRing& ring() const { return ring_; }
  int next_part() const { return next_part_; }  // which the next copies fill
  const gpu::Queue& copies() const { return copies_; }
  // Copies read which experts are in slots. Lets them wait for the work sent to `queue` so far, if that may have
  // changed since the last call: n_changes counts what did.
  void await_slots(const gpu::Queue& queue, unsigned n_changes);
  void begin_copy() const { copies_.wait(parts_[next_part_].emptied); }
  // After the copy, until the products of its experts are sent.
  void begin_products(const gpu::Queue& queue) const;
  void end_products(const gpu::Queue& queue);

 private:
  struct Copy {  // of a layer; recordings keep its address
    const ExpertFills* fills;
    gpu::FillSlots from, to;
  };
  struct Part {
    gpu::Event filled, emptied;
  };
  static void run(void* copy);

  std::optional<gpu::Buffer> stage_, fills_;
  std::map<const ExpertCache*, Copy> layer_copies_;
  gpu::ExpertRing ring_;
  gpu::Queue copies_;
  std::vector<Part> parts_;  // [kRingParts]
  gpu::Event slots_are_known_;
  int next_part_ = 0;
  unsigned n_changes_ = 0;
};

}  // namespace lb
