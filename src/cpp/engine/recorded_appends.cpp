// Records a shape on its second use: most prompt tails occur only once.
#include "engine/recorded_appends.h"

#include <algorithm>

namespace lb {

void RecordedAppends::send(std::span<const uint64_t> shape, Stream& stream, const std::function<void()>& work) {
  Stream* const streams[] = {&stream};
  send(shape, streams, work, [&](int) { work(); });
}

void RecordedAppends::send(std::span<const uint64_t> shape, std::span<Stream* const> streams,
                           const std::function<void()>& work, const std::function<void(int)>& of_rank) {
  const auto has_shape = [&](const Recorded& one) { return std::ranges::equal(one.shape, shape); };
  const auto found = std::ranges::find_if(recorded_, has_shape);
  if (found == recorded_.end()) {
    if (recorded_.size() == kMax) recorded_.pop_back();
    Recorded& first = *recorded_.insert(recorded_.begin(), Recorded{});
    first.shape.assign(shape.begin(), shape.end());
    first.recordings.resize(streams.size());
    return work();
  }
  std::rotate(recorded_.begin(), found, found + 1);
  for (size_t i = 0; i < streams.size(); ++i)
    streams[i]->replay(recorded_.front().recordings[i], [&] { of_rank(static_cast<int>(i)); });
}

}  // namespace lb
