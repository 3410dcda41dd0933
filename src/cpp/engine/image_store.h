// ImageStore: the images that an engine has encoded. An image is named by a key, a hash of its pixels. Each row of an
// image has a token id of its own, from kFirstImageId on, beyond any vocabulary. So a sequence of ids says which images
// it contains: everything that compares ids, such as the prefix cache, tells images apart and recognises the same one.
// Thread-safe: every call locks.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

namespace lb {

inline constexpr int32_t kFirstImageId = 1 << 30;
inline bool is_image_id(int32_t id) { return id >= kFirstImageId; }

// The ids and the shape of an image: ids [first_id, first_id + n()), row by row.
struct ImageGrid {
  int32_t first_id;
  int height, width;         // rows of the grid, and columns
  bool is_sequence = false;  // ImagePositions::kSequence, else kGrid
  int n() const { return height * width; }
  // Positions that the image takes in the text.
  int extent() const { return is_sequence ? n() : height > width ? height : width; }
};

struct EncodedImage {
  ImageGrid grid;
  std::vector<float> rows;  // [grid.n(), hidden]
};

class ImageStore {
 public:
  // Keeps the rows of the images used last, up to this many bytes. Rows that a caller holds stay in any case; ids and
  // shapes stay for ever.
  explicit ImageStore(size_t max_bytes) : max_bytes_(max_bytes) {}

  // The encoded image, marked as used; null: there is none, or its rows are gone.
  std::shared_ptr<const EncodedImage> find(const std::string& key);
  // grid: without its first id.
  std::shared_ptr<const EncodedImage> add(const std::string& key, ImageGrid grid, std::vector<float> rows);
  // The image of an id. Both throw kInvalid if there is none; rows_of() also if the rows are gone.
  ImageGrid grid_of(int32_t id) const;
  std::shared_ptr<const EncodedImage> rows_of(int32_t id) const;

 private:
  struct Known {
    ImageGrid grid;
    std::weak_ptr<const EncodedImage> image;
  };
  const Known& known(int32_t id) const;
  void use(const std::shared_ptr<const EncodedImage>& image);

  mutable std::mutex mutex_;
  size_t max_bytes_, bytes_ = 0;
  int32_t next_id_ = kFirstImageId;
  std::map<std::string, int32_t> ids_;                     // key -> first id
  std::map<int32_t, Known> known_;                         // by first id
  std::list<std::shared_ptr<const EncodedImage>> recent_;  // used last: first
};

}  // namespace lb
