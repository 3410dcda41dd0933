#include "engine/image_store.h"

#include <algorithm>
#include <iterator>
#include <limits>

#include "base/error.h"

namespace lb {

std::shared_ptr<const EncodedImage> ImageStore::find(const std::string& key) {
  const std::lock_guard lock(mutex_);
  const auto id = ids_.find(key);
  if (id == ids_.end()) return nullptr;
  auto image = known_.at(id->second).image.lock();
  if (image) use(image);
  return image;
}

std::shared_ptr<const EncodedImage> ImageStore::add(const std::string& key, ImageGrid grid, std::vector<float> rows) {
  const std::lock_guard lock(mutex_);
  const int n = grid.n();
  auto id = ids_.find(key);
  if (id == ids_.end()) {
    LB_CHECK(n <= std::numeric_limits<int32_t>::max() - next_id_, kUnsupported,
             "the engine has seen too many images; load the model again");
    id = ids_.emplace(key, next_id_).first;
    grid.first_id = next_id_;
    known_[next_id_] = {grid, {}};
    next_id_ += n;
  }
  Known& known = known_.at(id->second);
  LB_CHECK(known.grid.height == grid.height && known.grid.width == grid.width, kInvalid,
           "two images of different sizes have the same key");
  auto image = std::make_shared<const EncodedImage>(EncodedImage{known.grid, std::move(rows)});
  known.image = image;
  use(image);
  return image;
}

void ImageStore::use(const std::shared_ptr<const EncodedImage>& image) {
  const auto size = [](const auto& one) { return one->rows.size() * sizeof(float); };
  if (const auto at = std::ranges::find(recent_, image); at != recent_.end()) {
    recent_.splice(recent_.begin(), recent_, at);
    return;
  }
  recent_.push_front(image);
  bytes_ += size(image);
  while (bytes_ > max_bytes_ && recent_.size() > 1) {
    bytes_ -= size(recent_.back());
    recent_.pop_back();
  }
}

const ImageStore::Known& ImageStore::known(int32_t id) const {
  const auto after = known_.upper_bound(id);
  LB_CHECK(after != known_.begin() && id < next_id_, kInvalid, "id ", id,
           " is neither in the vocabulary nor of an image; encode images with this engine");
  return std::prev(after)->second;
}

ImageGrid ImageStore::grid_of(int32_t id) const {
  const std::lock_guard lock(mutex_);
  return known(id).grid;
}

std::shared_ptr<const EncodedImage> ImageStore::rows_of(int32_t id) const {
  const std::lock_guard lock(mutex_);
  auto image = known(id).image.lock();
  LB_CHECK(image != nullptr, kInvalid, "the rows of the image of id ", id, " are no longer kept; encode it again");
  return image;
}

}  // namespace lb
