// KeptWeights: the weights of an engine in pinned host memory, as they are in device memory. The copy grows slice by
// slice, so that a request never waits for more than one. Once complete, a later engine of the same files on the same
// devices copies the weights from there; it neither reads nor converts the files.
#pragma once

#include <string>
#include <vector>

#include "device/memory.h"

namespace lb {

struct KeptWeights {
  // WeightStore::memory from its start on.
  struct Store {
    size_t size = 0;                  // of WeightStore::memory
    std::vector<gpu::Buffer> slices;  // pinned; they follow each other

    size_t n_bytes() const {
      size_t sum = 0;
      for (const gpu::Buffer& slice : slices) sum += slice.size();
      return sum;
    }
  };

  KeptWeights() = default;
  KeptWeights(const KeptWeights&) = delete;
  KeptWeights& operator=(const KeptWeights&) = delete;

  std::string key;                         // of the files, the devices and the split
  std::vector<std::vector<Store>> stores;  // [shards][networks]

  size_t n_bytes() const {
    size_t sum = 0;
    for (const std::vector<Store>& shard : stores)
      for (const Store& store : shard) sum += store.n_bytes();
    return sum;
  }
  // n_bytes() of the complete copy.
  size_t total_bytes() const {
    size_t sum = 0;
    for (const std::vector<Store>& shard : stores)
      for (const Store& store : shard) sum += store.size;
    return sum;
  }
  bool is_complete() const { return n_bytes() == total_bytes(); }
  // Frees the last slice. Returns whether others remain.
  bool free_slice() {
    for (size_t i = stores.size(); i-- > 0;)
      for (size_t j = stores[i].size(); j-- > 0;)
        if (!stores[i][j].slices.empty()) {
          stores[i][j].slices.pop_back();
          return n_bytes() > 0;
        }
    return false;
  }
};

}  // namespace lb
