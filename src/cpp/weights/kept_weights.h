// KeptWeights: the weights of an engine in pinned host memory, as they were in device memory. A later engine of the
// same files on the same devices copies them from there; it neither reads nor converts the files.
#pragma once

#include <string>
#include <vector>

#include "device/memory.h"

namespace lb {

struct KeptWeights {
  KeptWeights() = default;
  KeptWeights(const KeptWeights&) = delete;
  KeptWeights& operator=(const KeptWeights&) = delete;

  std::string key;                               // of the files, the devices and the split
  std::vector<std::vector<gpu::Buffer>> stores;  // [shards][networks] WeightStore::memory

  size_t n_bytes() const {
    size_t sum = 0;
    for (const std::vector<gpu::Buffer>& shard : stores)
      for (const gpu::Buffer& store : shard) sum += store.size();
    return sum;
  }
};

}  // namespace lb
