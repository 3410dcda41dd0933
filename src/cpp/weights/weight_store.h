// WeightStore: the weights of a network on one shard. Each matrix has a slot (Matrix::slot). A table from slots to
// addresses exists on the host and in the stream's memory.
//
// No kernel reads the table yet: dense matrices never move, so launches, recordings and the megakernel's schedule hold
// their addresses directly. The table is for weights that move while recordings stay valid, such as experts.
#pragma once

#include <memory>
#include <vector>

#include "base/memory.h"

namespace lb {

struct WeightStore {
  std::unique_ptr<Memory> memory;      // planes, vectors and the table; null: all weights stay in the mapped file
  std::vector<const void*> addresses;  // [slots] on the host
  const void* const* table = nullptr;  // [slots] the same, in the stream's memory
};

}  // namespace lb
