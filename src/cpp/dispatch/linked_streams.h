// LinkedStreams: the streams of a model that is split by layers, each of which hands rows to the next one over a link.
// Their work is recorded together, because the epilogue of a stream's last product may be the next stream's first norm.
// A device that makes no progress fails the group: see docs/several_devices.md.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "dispatch/device_link.h"
#include "dispatch/gpu_stream.h"
#include "dispatch/stream_group.h"

namespace lb {

class LinkedStreams final : public StreamGroup {
 public:
  // links: [streams - 1] from each stream to the next. back: from the last stream to the first; null: none. timeout_ns:
  // the longest work of a stream between two marks of progress. The streams must outlive this.
  LinkedStreams(std::vector<GpuStream*> streams, std::vector<std::vector<DeviceLink*>> links, const DeviceLink* back,
                uint64_t timeout_ns);
  ~LinkedStreams() override;
  LinkedStreams(const LinkedStreams&) = delete;
  LinkedStreams& operator=(const LinkedStreams&) = delete;

  // As Stream::replay(), for work that sends its ops to one stream after the other: a graph per stream. A link's copies
  // stay outside the graphs, because queues of two drivers cannot wait for each other.
  void replay(std::unique_ptr<Recording>& recording, const std::function<void()>& work) const;

  bool has_failed() const override;
  void check() override;
  void wait_until(const std::function<bool()>& is_done) const override;
  void restart() override;

 private:
  using Clock = std::chrono::steady_clock;

  std::unique_ptr<Recording> record(const std::function<void()>& work) const;
  GpuStream* stuck_stream() const;
  GpuStream* running_stream() const;
  uint64_t marks() const;

  std::vector<GpuStream*> streams_;
  std::vector<std::vector<DeviceLink*>> links_;  // from each stream to the next
  std::vector<const DeviceLink*> all_links_;     // and back
  std::chrono::nanoseconds timeout_;
  mutable std::atomic<GpuStream*> failed_ = nullptr;  // makes no progress
  // Guarded by the mutex:
  mutable std::mutex mutex_;
  mutable Clock::time_point looked_, progressed_;
  mutable uint64_t seen_ = 0;  // marks() at the last look
};

}  // namespace lb
