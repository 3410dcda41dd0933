// Appends of few rows, as verification sends them again and again: from a shape's second time on the stream replays
// what it has written down, so that the device does not wait for hundreds of launches of the host.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "ops/stream.h"

namespace lb {

class RecordedAppends {
 public:
  // Shapes of one session: who verifies keeps to a few numbers of rows. (On an H100 the recordings of a 27B fit into
  // what the driver has set aside.)
  static constexpr size_t kMax = 8;

  // `work` sends an append that depends on nothing but these, and what the stream's memory holds.
  void send(int rows, bool is_tree, Stream& stream, const std::function<void()>& work);

 private:
  struct Shape {
    int rows;
    bool is_tree;
    std::unique_ptr<Recording> recording;
  };
  std::vector<Shape> shapes_;  // those sent last first
};

}  // namespace lb
