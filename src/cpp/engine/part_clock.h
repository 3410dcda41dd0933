// Times the parts of speculative steps. Off unless a benchmark turns it on. When on, the host waits for the device
// after each part, so nothing overlaps.
#pragma once

#include <array>
#include <chrono>

#include "ops/stream.h"

namespace lb {

enum class StepPart { kDraft, kTree, kVerify, kWalk, kCount };

class PartClock {
 public:
  using Seconds = std::array<double, int(StepPart::kCount)>;

  explicit PartClock(Stream& stream) : stream_(stream) {}

  void set_on(bool on) { is_on_ = on, seconds_ = {}; }
  const Seconds& seconds() const { return seconds_; }  // sums since set_on()

  void start() {
    if (is_on_) since_ = now();
  }
  // Charges the time since start() or the last end() to this part.
  void end(StepPart part) {
    if (!is_on_) return;
    const Clock::time_point end = now();
    seconds_[int(part)] += std::chrono::duration<double>(end - since_).count();
    since_ = end;
  }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point now() {
    stream_.wait();
    return Clock::now();
  }

  Stream& stream_;
  bool is_on_ = false;
  Clock::time_point since_;
  Seconds seconds_{};
};

}  // namespace lb
