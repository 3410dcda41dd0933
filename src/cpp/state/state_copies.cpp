#include "state/state_copies.h"

#include <algorithm>
#include <utility>

namespace lb {

std::shared_ptr<Memory> StateCopies::take(Stream& stream, size_t bytes) {
  std::unique_ptr<Memory> memory;
  {
    const std::lock_guard lock(mutex_);
    const auto found = std::ranges::find_if(free_, [&](const auto& one) { return one->size() == bytes; });
    if (found != free_.end()) {
      memory = std::move(*found);
      free_.erase(found);
    }
  }
  if (memory == nullptr) memory = stream.reserve_on_host(bytes);
  return {memory.release(),
          [pool = shared_from_this()](Memory* used) { pool->give_back(std::unique_ptr<Memory>(used)); }};
}

void StateCopies::give_back(std::unique_ptr<Memory> memory) {
  const std::lock_guard lock(mutex_);
  free_.push_back(std::move(memory));
  if (free_.size() > kMaxFree) free_.erase(free_.begin());
}

}  // namespace lb
