// StepRows: the draft model's rows of plain decode steps on a GPU. A step only stores its tapped row in a ring. The
// draft model's K and V of many steps are computed together: when a page of the sequence is full, before a draft, and
// before anything that reads or copies the sequence's state. So up to a page of tokens shares one read of the draft
// model's weights.
//
// The caller holds the pass buffers' lock.
#pragma once

#include <array>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "engine/engine.h"

namespace lb {

class StepRows {
 public:
  static size_t planned_bytes(const DraftModel& model);
  // The engine has a draft model.
  StepRows(const Engine& engine, SequenceState& state);

  // [shards] of those that draft, and of a target whose draft model has a device of its own; without rows on others.
  std::span<const StepRing> rings() const { return rings_; }
  // Whether compute() is due before the next step, which would begin another page.
  bool is_full() const;
  // Call after a plain step has begun its append, before it is sent.
  void begin_step();
  // Whether settle() has rows to compute.
  bool is_behind() const { return newest_ >= 0; }
  // Writes the missing K and V of all committed rows, whose steps have been sent to the stream. tokens: the sequence.
  void compute(std::span<const int32_t> tokens);
  // compute(), then brings the draft model's state to what other appends need. No step may be pending.
  void settle(std::span<const int32_t> tokens);
  // Call when the sequence has been emptied.
  void reset();

 private:
  static constexpr int kNone = std::numeric_limits<int>::max();
  void compute(int first, int rows, std::span<const int32_t> tokens);
  void compute_on(int shard, int first, int rows, std::span<const int32_t> tokens);

  const Engine& engine_;
  SequenceState& state_;
  std::vector<std::unique_ptr<Memory>> memories_;  // of the rings
  std::vector<StepRing> rings_;                    // [shards]
  int first_missing_ = kNone;                      // slot of the first row without K and V
  int newest_ = -1;                                // slot of the newest plain step since settle(); -1: none
  // Recordings of compute() for a whole page on each shard, one per half of the ring.
  std::vector<std::array<std::unique_ptr<Recording>, StepRing::kRows / kPageTokens>> recordings_;
};

}  // namespace lb
