// MegaSteps: runs decode steps as megakernel launches of several tokens each. It owns the schedule's device tables and
// tracks the launches' progress.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "dispatch/gpu_stream.h"
#include "engine/token_loop.h"
#include "gpu/megakernel/schedule/schedule.h"

namespace lb {

// In pinned memory: the device's results, and the token budget that the host grants the device.
struct Ring {
  static constexpr uint32_t kSlots = 128;  // more than the tokens in flight, which are at most a path through a tree

  std::array<Sampled, kSlots> slots;
  uint32_t written;
  uint32_t allowed, ended;  // gpu::TokenBudget
  gpu::MegaReport report;
};

// Tokens are numbered as in the ring: token 0 is the first one that the session's loop chose.
class MegaSteps {
 public:
  static constexpr long kTimeoutNs = 2'000'000'000;  // limit of a block's wait for other blocks

  static size_t planned_bytes(const gpu::MegaPlan& plan);
  // keep_going: as in the plan's TokenBudget.
  MegaSteps(const gpu::MegaPlan& plan, uint32_t* keep_going, int max_tokens, Ring* ring, GpuStream& stream);

  // Requests token n. The running launch computes it if it sees the larger budget in time; otherwise the next launch
  // does.
  void step(uint32_t n);
  // Call when the host has seen n tokens written. Returns whether the launch ended there although more tokens were
  // requested: then call launch_again(). leader: the steps of the last rank, of which the host sees the tokens; all
  // ranks' launches end together.
  bool follow(uint32_t n, const MegaSteps& leader);
  void launch_again() { launch(n_before_); }
  // Call when no launch runs: takes back the requests of tokens that are not written. n: tokens written.
  void drop(uint32_t n);
  // True until the host sees the launch end: requested tokens may still be missing.
  bool is_running() const { return is_running_; }
  const std::string& text() const { return text_; }

  // The words that this rank's peers fill; [n_words()]. join() takes the words of all ranks, before the first step.
  gpu::Mailbox* words() const { return words_; }
  int n_words() const { return n_words_; }
  void join(const gpu::MegaRanks& ranks);
  // Whether the ranks' launches can run together: they have the same phases, on grids of the same size.
  bool matches(const MegaSteps& other) const {
    return params_.n_phases == other.params_.n_phases && launch_.grid[0] == other.launch_.grid[0];
  }

  // Time stamps of the last step, [blocks, n_steps]; waits for the running launch. Throws if the pack was built without
  // time stamps.
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
  gpu::Mailbox* words_ = nullptr;
  int n_words_ = 0;
  gpu::MegaRanks* ranks_ = nullptr;
  uint32_t n_requested_ = 0;  // tokens
  uint32_t n_before_ = 0;     // tokens before the last launch
  bool is_running_ = false;
};

}  // namespace lb
