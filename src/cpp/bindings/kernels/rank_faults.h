// Faults that tests inject into the ranks of a tensor split, on any device: a stream that hangs, values that get lost
// on their way, a kernel that fails.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "dispatch/rank_group.h"

namespace lb::kernels {

// A rank whose queue hangs once the work sent before is complete, until release().
class HeldRank {
 public:
  // Waits until the queue hangs. The stream and the group must outlive this.
  HeldRank(GpuStream& stream, const RankGroup& ranks, int rank);
  ~HeldRank() { release(); }
  HeldRank(const HeldRank&) = delete;
  HeldRank& operator=(const HeldRank&) = delete;

  void release();
  // Waits until a peer's values arrive, and erases them: their tags and flags are as if nothing had been sent. Throws
  // kDevice if nothing arrives.
  void erase_arrival();

 private:
  struct State {
    std::atomic<bool> is_held = false, is_released = false;
  };

  // The words and then the flags, by which the rank sees that values have arrived.
  std::vector<std::byte> arrivals() const;

  gpu::Queue other_;  // of the rank's device
  const RankMailboxes& own_;
  std::shared_ptr<State> state_;
  std::vector<std::byte> before_;
};

// Sends the rank a kernel that writes to an address without memory. A GPU's context is unusable from then on.
void crash(GpuStream& stream);

}  // namespace lb::kernels
