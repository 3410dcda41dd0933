// Host memory for copies of recurrent states, reserved as copies are made. Pinning it takes longer than the copy, so
// memory that is given back serves the next one.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "base/memory.h"
#include "ops/stream.h"

namespace lb {

class StateCopies : public std::enable_shared_from_this<StateCopies> {
 public:
  // Memory for a copy of this stream's memory, with undefined contents. Any thread may drop it, also after the stream.
  std::shared_ptr<Memory> take(Stream& stream, size_t bytes);

 private:
  static constexpr size_t kMaxFree = 2;  // a turn of a conversation stores two states and drops two
  void give_back(std::unique_ptr<Memory> memory);

  std::mutex mutex_;
  std::vector<std::unique_ptr<Memory>> free_;
};

}  // namespace lb
