// LinkedStreams: the streams of a model that is split by layers, each of which hands rows to the next one over a link.
// Their work is recorded together, because the epilogue of a stream's last product may be the next stream's first norm.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "dispatch/device_link.h"
#include "dispatch/gpu_stream.h"

namespace lb {

class LinkedStreams {
 public:
  // links: [streams - 1] from each stream to the next.
  LinkedStreams(std::vector<GpuStream*> streams, std::vector<std::vector<DeviceLink*>> links)
      : streams_(std::move(streams)), links_(std::move(links)) {}

  // As Stream::replay(), for work that sends its ops to one stream after the other: a graph per stream. A link's copies
  // stay outside the graphs, because queues of two drivers cannot wait for each other.
  void replay(std::unique_ptr<Recording>& recording, const std::function<void()>& work) const;

 private:
  std::unique_ptr<Recording> record(const std::function<void()>& work) const;

  std::vector<GpuStream*> streams_;
  std::vector<std::vector<DeviceLink*>> links_;  // from each stream to the next
};

}  // namespace lb
