// A shape's first time is only remembered: most ends of prompts come once.
#include "engine/recorded_appends.h"

#include <algorithm>

namespace lb {

void RecordedAppends::send(int rows, bool is_tree, Stream& stream, const std::function<void()>& work) {
  const auto is_this = [&](const Shape& shape) { return shape.rows == rows && shape.is_tree == is_tree; };
  const auto found = std::ranges::find_if(shapes_, is_this);
  if (found == shapes_.end()) {
    if (shapes_.size() == kMax) shapes_.pop_back();
    shapes_.insert(shapes_.begin(), {rows, is_tree, nullptr});
    return work();
  }
  std::rotate(shapes_.begin(), found, found + 1);
  stream.replay(shapes_.front().recording, work);
}

}  // namespace lb
