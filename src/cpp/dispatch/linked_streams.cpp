#include "dispatch/linked_streams.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <thread>

#include "base/error.h"

namespace lb {
namespace {

// Between two looks at the marks. After a longer gap, in which no host thread waited, the time-out starts again.
constexpr std::chrono::milliseconds kLook{1}, kMaxGap{1000};
// How long an error waits for the end of the stuck work.
constexpr std::chrono::milliseconds kDrain{500};

struct LinkedGraphs final : Recording {
  struct Stage {
    gpu::Graph graph;
    std::vector<LinkCopy> copies;  // to the next stream
  };
  std::vector<Stage> stages;
};

}  // namespace

LinkedStreams::LinkedStreams(std::vector<GpuStream*> streams, std::vector<std::vector<DeviceLink*>> links,
                             const DeviceLink* back, uint64_t timeout_ns)
    : streams_(std::move(streams)), links_(std::move(links)), timeout_(timeout_ns) {
  for (const auto& hop : links_) all_links_.insert(all_links_.end(), hop.begin(), hop.end());
  if (back != nullptr) all_links_.push_back(back);
  for (GpuStream* stream : streams_) stream->join(this);
}

LinkedStreams::~LinkedStreams() {
  for (GpuStream* stream : streams_) stream->join(nullptr);
}

// A number that changes whenever a device makes progress: it has reached a pace, has done its part of a copy, or has no
// more work.
uint64_t LinkedStreams::marks() const {
  uint64_t sum = 0;
  const auto add = [&](uint64_t value) { sum = (sum ^ value) * 0x9e3779b97f4a7c15u; };
  for (const GpuStream* stream : streams_) add(2 * uint64_t{stream->n_paces_reached()} + stream->is_done());
  for (const DeviceLink* link : all_links_)
    for (const DeviceLink::Pending& copy : link->pending()) add(2 * copy.order + copy.is_filled);
  return sum;
}

// Queues run in order, and a stream waits only for copies that the host sent before. So what the oldest copy waits for
// is work of one device alone: of its sender until it is filled, then of its receiver. Without a copy in flight, it is
// the work of any stream.
GpuStream* LinkedStreams::stuck_stream() const {
  std::optional<uint64_t> oldest;
  GpuStream* stuck = nullptr;
  for (const DeviceLink* link : all_links_)
    for (const DeviceLink::Pending& copy : link->pending())
      if (!oldest || copy.order < *oldest) {
        oldest = copy.order;
        stuck = copy.is_filled ? &link->to() : &link->from();
      }
  if (oldest) return stuck;
  const auto running = std::ranges::find_if(streams_, [](const GpuStream* stream) { return !stream->is_done(); });
  return running == streams_.end() ? nullptr : *running;
}

bool LinkedStreams::has_failed() const {
  if (failed_ != nullptr) return true;
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return false;  // another thread looks
  const Clock::time_point now = Clock::now();
  if (now - looked_ < kLook) return false;
  const uint64_t reached = marks();
  if (reached != seen_ || now - looked_ > kMaxGap) progressed_ = now;
  looked_ = now, seen_ = reached;
  if (now - progressed_ > timeout_) failed_ = stuck_stream();
  return failed_ != nullptr;
}

void LinkedStreams::wait_until(const std::function<bool()>& is_done) const {
  const Clock::time_point pauses_from = Clock::now() + (is_sim(*streams_[0]) ? kSimBusy : kBusy);
  while (!is_done()) {
    if (Clock::now() < pauses_from) continue;
    if (has_failed()) return;
    std::this_thread::sleep_for(kPause);
  }
}

void LinkedStreams::check() {
  GpuStream* const failed = failed_;
  if (failed == nullptr) return;
  if (!is_stopped_.exchange(true)) ++n_failures_;
  GpuStream* const running = running_stream();
  fail(ErrorCode::kDevice, "[device_link] ", name_of(*failed), " made no progress for ",
       std::chrono::duration<double>(timeout_).count(), " s. ", lost_requests(running));
}

void LinkedStreams::restart() {
  if (!is_stopped_) return;
  check_ended("device_link", running_stream());
  failed_ = nullptr;
  is_stopped_ = false;
}

// The stream that the others wait for, if their work does not end soon, or null.
GpuStream* LinkedStreams::running_stream() const {
  const auto is_done = [](const GpuStream* stream) { return stream->is_done(); };
  for (const Clock::time_point end = Clock::now() + kDrain; !std::ranges::all_of(streams_, is_done);
       std::this_thread::sleep_for(kPause))
    if (Clock::now() > end) return stuck_stream();
  return nullptr;
}

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
