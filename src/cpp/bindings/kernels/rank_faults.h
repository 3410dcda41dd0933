// Faults that tests inject into a model on several devices, of any kind: a stream that hangs, and in the ranks of a
// tensor split values that get lost on their way, a kernel that fails.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "dispatch/rank_group.h"

namespace lb::kernels {

// A stream that hangs once the work sent before is complete, until release().
class HeldStream {
 public:
  // Waits until the stream hangs. It must outlive this.
  explicit HeldStream(GpuStream& stream);
  ~HeldStream() { release(); }
  HeldStream(const HeldStream&) = delete;
  HeldStream& operator=(const HeldStream&) = delete;

  void release();

 private:
  struct State {
    std::atomic<bool> is_held = false, is_released = false;
  };

  std::shared_ptr<State> state_;
};

class HeldRank : public HeldStream {
 public:
  // The group must outlive this, too.
  HeldRank(GpuStream& stream, const RankGroup& ranks, int rank);

  // Waits until a peer's values arrive, and erases them: their tags and flags are as if nothing had been sent. Throws
  // kDevice if nothing arrives.
  void erase_arrival();

 private:
  // The words and then the flags, by which the rank sees that values have arrived.
  std::vector<std::byte> arrivals() const;

  gpu::Queue other_;  // of the rank's device
  const RankMailboxes& own_;
  std::vector<std::byte> before_;
};

// Sends the rank a kernel that writes to an address without memory. A GPU's context is unusable from then on.
void crash(GpuStream& stream);

}  // namespace lb::kernels
