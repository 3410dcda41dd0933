// The draft model's rows of plain decode steps on a device. A step only keeps its tapped row in a ring. The K and V of
// many steps are computed at once: when a page of the sequence is full, before a draft, and before anything that reads
// or copies the sequence's state. So one reading of the draft model's weights serves up to a page of tokens.
//
// The caller holds the executor's lock.
#pragma once

#include <array>
#include <limits>
#include <memory>
#include <span>

#include "engine/engine.h"

namespace lb {

class StepRows {
 public:
  static size_t planned_bytes(const DraftModel& model);
  // The engine has a draft model.
  StepRows(const Engine& engine, SequenceState& state);

  const StepRing& ring() const { return ring_; }
  // Whether compute() is due before the next step: the step would begin another page.
  bool is_full() const;
  // A plain step has begun its append and is sent next.
  void begin_step();
  // Whether settle() has something to do.
  bool is_behind() const { return newest_ >= 0; }
  // Writes K and V of all committed rows. tokens: the sequence. Their steps are sent to the stream.
  void compute(std::span<const int32_t> tokens);
  // compute(), and makes the draft model's state what other appends need. No step is pending.
  void settle(std::span<const int32_t> tokens);
  // The sequence is empty.
  void reset();

 private:
  static constexpr int kNone = std::numeric_limits<int>::max();
  void compute(int first, int rows, std::span<const int32_t> tokens);

  const Engine& engine_;
  SequenceState& state_;
  std::unique_ptr<Memory> memory_;
  StepRing ring_;
  int first_missing_ = kNone;  // slot of the first row without K and V
  int newest_ = -1;            // slot of the newest plain step since settle(); -1: none
  // compute() of a whole page, by half of the ring.
  std::array<std::unique_ptr<Recording>, StepRing::kRows / kPageTokens> recordings_;
};

}  // namespace lb
