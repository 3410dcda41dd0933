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

  std::string key;                  // of the files, the devices and the split: Engine::weights_key()
  std::vector<gpu::Buffer> stores;  // WeightStore::memory of each shard and network, in the order of their load

  size_t n_bytes() const {
    size_t sum = 0;
    for (const gpu::Buffer& store : stores) sum += store.size();
    return sum;
  }
};

}  // namespace lb
