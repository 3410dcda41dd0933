#include "dispatch/staged_experts.h"

#include <cstring>

#include "base/error.h"
#include "gpu/ceil_div.h"

namespace lb {

StagedExperts::StagedExperts(const gpu::Device& device, const gpu::ExpertRing& ring, size_t stage_bytes)
    : ring_(ring),
      copies_(device, gpu::Queue::Runner::kOwnThread, gpu::Queue::Priority::kUrgent),
      slots_are_known_(device) {
  for (int i = 0; i < gpu::kRingParts; ++i) parts_.push_back({gpu::Event(device), gpu::Event(device)});
  if (stage_bytes == 0) return;
  stage_.emplace(device, stage_bytes, gpu::Buffer::Kind::kPinned);
  fills_.emplace(device, sizeof(ExpertFills), gpu::Buffer::Kind::kPinned);
}

gpu::FillSlots StagedExperts::stage(const gpu::FillSlots& fill, int n_slots, const gpu::Queue& queue) {
  const auto [found, is_new] = layer_copies_.try_emplace(fill.cache);
  Copy& copy = found->second;
  if (is_new) {
    copy = {fills(), fill, fill};
    copy.to.is_staged = true;
    size_t used = 0;
    for (int i = 0; i < fill.pieces.n; ++i) {
      copy.to.pieces.of[i].from = reinterpret_cast<const uint8_t*>(stage_->data()) + used;
      used += gpu::round_up(size_t(n_slots) * fill.pieces.of[i].bytes, quant::kRowAlignment);
    }
    LB_ASSERT(used <= stage_->size());
  }
  queue.run_on_host(&run, &copy);
  return copy.to;
}

void StagedExperts::run(void* argument) {
  const Copy& copy = *static_cast<const Copy*>(argument);
  for (int number = 0; number < copy.fills->n; ++number)
    for (int i = 0; i < copy.from.pieces.n; ++i) {
      const gpu::ExpertPiece& piece = copy.from.pieces.of[i];
      std::memcpy(const_cast<uint8_t*>(copy.to.pieces.of[i].from) + size_t(number) * piece.bytes,
                  piece.from + size_t(copy.fills->of[number].expert) * piece.bytes, piece.bytes);
    }
}

void StagedExperts::await_slots(const gpu::Queue& queue, unsigned n_changes) {
  if (n_changes == n_changes_) return;
  n_changes_ = n_changes;
  queue.record(slots_are_known_);
  copies_.wait(slots_are_known_);
}

void StagedExperts::begin_products(const gpu::Queue& queue) const {
  copies_.record(parts_[next_part_].filled);
  queue.wait(parts_[next_part_].filled);
}

void StagedExperts::end_products(const gpu::Queue& queue) {
  queue.record(parts_[next_part_].emptied);
  next_part_ = (next_part_ + 1) % gpu::kRingParts;
}

}  // namespace lb
