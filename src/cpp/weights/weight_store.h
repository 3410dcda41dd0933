// WeightStore: the weights of a network on one shard. Each matrix has a slot (Matrix::slot), and a table from slots to
// addresses is on the host and in the stream's memory.
//
// Nothing on a device reads the table yet: launches, recordings and the megakernel's schedule hold the addresses of
// dense matrices, which never move, and save the look-up. Weights that move while recordings stay, as experts do, are
// read through it.
#pragma once

#include <memory>
#include <vector>

#include "base/memory.h"

namespace lb {

struct WeightStore {
  std::unique_ptr<Memory> memory;      // planes, vectors and the table; null: all stays in the file's mapping
  std::vector<const void*> addresses;  // [slots] on the host
  const void* const* table = nullptr;  // [slots] the same, in the stream's memory
};

}  // namespace lb
