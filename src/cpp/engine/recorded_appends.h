// Appends of few rows, as verification sends them again and again. From a shape's second time on, the stream replays
// its recording, so the device does not wait for hundreds of launches from the host.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "ops/stream.h"

namespace lb {

class RecordedAppends {
 public:
  // Shapes of one session: verification uses few numbers of rows. (On an H100, 8 recordings of a 27B model fit into
  // memory that the driver has reserved anyway.)
  static constexpr size_t kMax = 8;

  // `work` sends an append that depends only on rows, is_tree and the contents of the stream's memory.
  void send(int rows, bool is_tree, Stream& stream, const std::function<void()>& work);

 private:
  struct Shape {
    int rows;
    bool is_tree;
    std::unique_ptr<Recording> recording;
  };
  std::vector<Shape> shapes_;  // most recent first
};

}  // namespace lb
