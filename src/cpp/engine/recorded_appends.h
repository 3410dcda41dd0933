// Appends of few rows, as decoding and verification send them again and again. From a shape's second time on, the
// stream replays its recording, so the device does not wait for hundreds of launches from the host.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "ops/stream.h"

namespace lb {

class RecordedAppends {
 public:
  // Verification uses few numbers of rows, and sequences that decode together stay together for a while. (On an H100, 8
  // recordings of a 27B model fit into memory that the driver has reserved anyway.)
  static constexpr size_t kMax = 8;

  // `work` sends an append that depends only on the shape and the contents of the stream's memory.
  void send(std::span<const uint64_t> shape, Stream& stream, const std::function<void()>& work);

 private:
  struct Recorded {
    std::vector<uint64_t> shape;
    std::unique_ptr<Recording> recording;
  };
  std::vector<Recorded> recorded_;  // most recent first
};

}  // namespace lb
