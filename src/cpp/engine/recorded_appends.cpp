// Records a shape on its second use: most prompt tails occur only once.
#include "engine/recorded_appends.h"

#include <algorithm>

namespace lb {

void RecordedAppends::send(std::span<const uint64_t> shape, Stream& stream, const std::function<void()>& work) {
  const auto has_shape = [&](const Recorded& one) { return std::ranges::equal(one.shape, shape); };
  const auto found = std::ranges::find_if(recorded_, has_shape);
  if (found == recorded_.end()) {
    if (recorded_.size() == kMax) recorded_.pop_back();
    recorded_.insert(recorded_.begin(), {{shape.begin(), shape.end()}, nullptr});
    return work();
  }
  std::rotate(recorded_.begin(), found, found + 1);
  stream.replay(recorded_.front().recording, work);
}

}  // namespace lb
