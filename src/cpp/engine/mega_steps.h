// Steps as launches of the megakernel, of several tokens each: the schedule's tables on the device, and where the
// launches stand.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "dispatch/gpu_stream.h"
#include "engine/token_loop.h"
#include "gpu/megakernel/schedule/schedule.h"

namespace lb {

// In pinned memory: what the device tells the host, and how far it may go on.
struct Ring {
  static constexpr uint32_t kSlots = 4;  // more than are ever on their way

  std::array<Sampled, kSlots> slots;
  uint32_t written;
  uint32_t allowed, ended;  // gpu::TokenBudget
  gpu::MegaReport report;
};

// Tokens are counted as the ring counts them.
class MegaSteps {
 public:
  static constexpr long kPatienceNs = 2'000'000'000;

  static size_t planned_bytes(const gpu::MegaPlan& plan);
  // keep_going: of the plan's Leave.
  MegaSteps(const gpu::MegaPlan& plan, uint32_t* keep_going, int max_tokens, Ring* ring, GpuStream& stream);

  // One more token after n that were asked for: by the launch that is running, if that sees it in time.
  void step(uint32_t n);
  // Token n has been written; the launch may have ended with it.
  void has_written(uint32_t n);
  // Tokens asked for may be missing: has_written() has not told of a launch's end with the last of them.
  bool is_running() const { return is_running_; }
  const std::string& text() const { return text_; }
  // Of the last step, [blocks, n_steps]; ends the launch that is running. Throws where the pack takes no stamps.
  Timeline timeline();

 private:
  void launch(uint32_t n);
  void allow();

  GpuStream& stream_;
  Ring* ring_;
  gpu::Launch launch_;
  std::string text_;
  std::vector<std::string> names_;  // of tasks
  std::unique_ptr<Memory> memory_;
  gpu::Mega params_ = {};
  uint32_t wanted_ = 0, begin_ = 0;  // tokens: asked for, and before the last launch
  bool is_running_ = false;          // it has not been seen to end
};

}  // namespace lb
