// Records a shape on its second use: most prompt tails occur only once.
#include "engine/recorded_appends.h"

#include <algorithm>

namespace lb {

RecordedAppends::Recorded* RecordedAppends::find(std::span<const uint64_t> shape, size_t n_recordings) {
  const auto has_shape = [&](const Recorded& one) { return std::ranges::equal(one.shape, shape); };
  const auto found = std::ranges::find_if(recorded_, has_shape);
  if (found != recorded_.end()) {
    std::rotate(recorded_.begin(), found, found + 1);
    return &recorded_.front();
  }
  if (recorded_.size() == kMax) recorded_.pop_back();
  Recorded& first = *recorded_.insert(recorded_.begin(), Recorded{});
  first.shape.assign(shape.begin(), shape.end());
  first.recordings.resize(n_recordings);
  return nullptr;
}

void RecordedAppends::send(std::span<const uint64_t> shape, Stream& stream, const std::function<void()>& work) {
  Recorded* const recorded = find(shape, 1);
  recorded == nullptr ? work() : stream.replay(recorded->recordings[0], work);
}

void RecordedAppends::send(std::span<const uint64_t> shape, const LinkedStreams& streams,
                           const std::function<void()>& work) {
  Recorded* const recorded = find(shape, 1);
  recorded == nullptr ? work() : streams.replay(recorded->recordings[0], work);
}

void RecordedAppends::send(std::span<const uint64_t> shape, std::span<Stream* const> streams,
                           const std::function<void()>& work, const std::function<void(int)>& of_rank) {
  Recorded* const recorded = find(shape, streams.size());
  if (recorded == nullptr) return work();
  for (size_t i = 0; i < streams.size(); ++i)
    streams[i]->replay(recorded->recordings[i], [&] { of_rank(static_cast<int>(i)); });
}

}  // namespace lb
