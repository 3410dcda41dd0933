// StreamGroup: the streams of a model on several devices, whose work waits for each other's. The host waits for their
// work only as long as all devices make progress, so that a device that hangs ends a request with an error.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include "base/error.h"
#include "dispatch/gpu_stream.h"

namespace lb {

// The simulator computes for as long as the host lets it.
inline constexpr uint64_t kSimTimeoutNs = 20'000'000'000;

class StreamGroup {
 public:
  virtual ~StreamGroup() = default;

  // Whether a device has failed the others. Any thread may ask.
  virtual bool has_failed() const = 0;
  // Throws kDevice if has_failed(). The requests in progress are lost. The streams can start again, at once, or where
  // the work of a device does not end, after restart(). No other thread may send work meanwhile.
  virtual void check() = 0;
  // Waits until is_done() or has_failed(): a device that hangs never ends its work.
  virtual void wait_until(const std::function<bool()>& is_done) const = 0;
  // Call before new work: starts the streams again if check() could not. Throws kDevice while the work of a device does
  // not end. No other thread may send work meanwhile.
  virtual void restart() = 0;
  // Whether restart() has something to do. Any thread may ask.
  bool is_stopped() const { return is_stopped_; }
  // Failures so far. State that was computed before the last one may be wrong. Any thread may ask.
  int n_failures() const { return n_failures_; }

 protected:
  std::atomic<bool> is_stopped_ = false;
  std::atomic<int> n_failures_ = 0;

  // The end of an error of check(). running: the stream whose work goes on; null: none.
  static std::string lost_requests(GpuStream* running) {
    return cat("The requests in progress are lost; the next ones start ",
               running == nullptr ? "again" : cat("once ", name_of(*running), " has ended its work"));
  }
  // Throws kDevice, with the name of the group's op, if a stream runs.
  static void check_ended(const char* op, GpuStream* running) {
    LB_CHECK(running == nullptr, kDevice, "[", op, "] ", name_of(*running),
             " still has not ended the work of a request that failed. If it never does, restart the process");
  }

  // Waits poll, so that they see a failure: without a pause for as long as a step may take, so that none ends late. The
  // simulator needs the processor itself.
  static constexpr std::chrono::microseconds kBusy{20'000}, kSimBusy{200}, kPause{50};

  static bool is_sim(GpuStream& stream) { return stream.pack().device().info().vendor == gpu::Vendor::kSim; }
  static std::string name_of(GpuStream& stream) { return stream.pack().device().context()->where(); }
};

}  // namespace lb
