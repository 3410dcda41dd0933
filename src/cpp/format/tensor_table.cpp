// A sorted index of the views. Without hashing, no hostile file can make look-ups slow.
#include "format/tensor_table.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "format/text.h"

namespace lb {

TensorTable::TensorTable(std::vector<TensorView> tensors, std::vector<std::shared_ptr<const void>> owners)
    : tensors_(std::move(tensors)), by_name_(tensors_.size()), owners_(std::move(owners)) {
  std::iota(by_name_.begin(), by_name_.end(), 0u);
  std::sort(by_name_.begin(), by_name_.end(),
            [this](uint32_t a, uint32_t b) { return std::pair(tensors_[a].name, a) < std::pair(tensors_[b].name, b); });
  const auto twice = std::adjacent_find(by_name_.begin(), by_name_.end(), [this](uint32_t a, uint32_t b) {
    return tensors_[a].name == tensors_[b].name;
  });
  if (twice != by_name_.end()) {
    const TensorView &first = tensors_[twice[0]], &second = tensors_[twice[1]];
    fail(ErrorCode::kFormat, to_string(second), ": duplicate name, already ", to_string(first));
  }
  for (const TensorView& tensor : tensors_) total_bytes_ += tensor.bytes;
}

const TensorView* TensorTable::find(std::string_view name) const {
  const auto at = std::lower_bound(by_name_.begin(), by_name_.end(), name,
                                   [this](uint32_t i, std::string_view wanted) { return tensors_[i].name < wanted; });
  return at != by_name_.end() && tensors_[*at].name == name ? &tensors_[*at] : nullptr;
}

std::string_view type_name(const TensorView& tensor) {
  return tensor.foreign_type.empty() ? name(tensor.type) : std::string_view(tensor.foreign_type);
}

std::string to_string(const TensorView& tensor) {
  return cat("tensor ", quoted(tensor.name), " in ", printable(tensor.file), " at byte ", tensor.offset);
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

}  // namespace lb
