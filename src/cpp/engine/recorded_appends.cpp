// A shape's first append is not recorded: most prompt tails come only once.
#include "engine/recorded_appends.h"

#include <algorithm>

namespace lb {

void RecordedAppends::send(int rows, bool is_tree, Stream& stream, const std::function<void()>& work) {
  const auto has_shape = [&](const Shape& shape) { return shape.rows == rows && shape.is_tree == is_tree; };
  const auto found = std::ranges::find_if(shapes_, has_shape);
  if (found == shapes_.end()) {
    if (shapes_.size() == kMax) shapes_.pop_back();
    shapes_.insert(shapes_.begin(), {rows, is_tree, nullptr});
    return work();
  }
  std::rotate(shapes_.begin(), found, found + 1);
  stream.replay(shapes_.front().recording, work);
}

}  // namespace lb
