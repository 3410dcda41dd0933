#include "dispatch/linked_streams.h"

#include <algorithm>
#include <deque>

namespace lb {
namespace {

struct LinkedGraphs final : Recording {
  struct Stage {
    gpu::Graph graph;
    std::vector<LinkCopy> copies;  // to the next stream
  };
  std::vector<Stage> stages;
};

}  // namespace

void LinkedStreams::replay(std::unique_ptr<Recording>& recording, const std::function<void()>& work) const {
  if (!std::ranges::all_of(streams_, &GpuStream::can_record)) return work();
  if (recording == nullptr) recording = record(work);
  const auto& stages = static_cast<const LinkedGraphs&>(*recording).stages;
  for (size_t i = 0; i < stages.size(); ++i) {
    stages[i].graph.launch(streams_[i]->queue());
    for (const LinkCopy& copy : stages[i].copies) copy.send();
  }
}

std::unique_ptr<Recording> LinkedStreams::record(const std::function<void()>& work) const {
  std::vector<std::vector<LinkCopy>> copies(streams_.size());
  struct RecordedLinks {
    const std::vector<std::vector<DeviceLink*>>& links;
    ~RecordedLinks() {
      for (const auto& hop : links)
        for (DeviceLink* link : hop) link->record(nullptr);
    }
  } recorded{links_};
  std::deque<GpuStream::Recorder> recorders;
  for (GpuStream* stream : streams_) recorders.emplace_back(*stream);
  for (size_t i = 0; i < links_.size(); ++i)
    for (DeviceLink* link : links_[i]) link->record(&copies[i]);
  work();
  std::vector<gpu::Resource> captured;  // all captures end before the first graph is made
  for (GpuStream::Recorder& recorder : recorders) captured.push_back(recorder.finish());
  auto graphs = std::make_unique<LinkedGraphs>();
  for (size_t i = 0; i < streams_.size(); ++i)
    graphs->stages.push_back({gpu::Graph(captured[i]), std::move(copies[i])});
  return graphs;
}

}  // namespace lb
