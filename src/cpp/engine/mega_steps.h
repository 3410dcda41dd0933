// Decode steps as launches of the megakernel, each of several tokens: the schedule's tables on the device, and how far
// the launches have come.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "dispatch/gpu_stream.h"
#include "engine/token_loop.h"
#include "gpu/megakernel/schedule/schedule.h"

namespace lb {

// In pinned memory: results from the device, and the host's token budget for it.
struct Ring {
  static constexpr uint32_t kSlots = 128;  // more than there are tokens in flight: a path through a tree

  std::array<Sampled, kSlots> slots;
  uint32_t written;
  uint32_t allowed, ended;  // gpu::TokenBudget
  gpu::MegaReport report;
};

// Tokens are numbered as in the ring: 0 is the first one that the session's loop chose.
class MegaSteps {
 public:
  static constexpr long kTimeoutNs = 2'000'000'000;  // of a block's wait for other blocks

  static size_t planned_bytes(const gpu::MegaPlan& plan);
  // keep_going: as in the plan's TokenBudget.
  MegaSteps(const gpu::MegaPlan& plan, uint32_t* keep_going, int max_tokens, Ring* ring, GpuStream& stream);

  // Requests token n. The running launch makes it, if it sees the larger budget in time; else the next launch does.
  void step(uint32_t n);
  // The host has seen n tokens written. If the launch has ended there, starts another where more were requested.
  void on_written(uint32_t n);
  // A launch has not been seen to end: requested tokens may still be missing.
  bool is_running() const { return is_running_; }
  const std::string& text() const { return text_; }
  // Time stamps of the last step, [blocks, n_steps]; waits for the running launch. Throws where the pack was built
  // without them.
  StepTimeline timeline();

 private:
  void launch(uint32_t n);
  void allow();

  GpuStream& stream_;
  Ring* ring_;
  gpu::Launch launch_;
  std::string text_;
  std::vector<std::string> task_names_;
  std::unique_ptr<Memory> memory_;
  gpu::Mega params_ = {};
  uint32_t n_requested_ = 0;  // tokens
  uint32_t n_before_ = 0;     // tokens before the last launch
  bool is_running_ = false;
};

}  // namespace lb
