// PagePool: the pages of K and V that the sequences of an engine share. Page p is one index for K and V of every layer
// that keeps all rows. Pages have reference counts: sequences with a common prefix hold the same pages, and a sequence
// copies a shared page before it writes it. Counts and the free list lie on the host. All users of a pool send their
// ops to its stream, in order. So a page may be given back, and taken by another sequence, while ops sent earlier still
// read or write it.
#pragma once

#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/memory.h"
#include "ops/stream.h"
#include "state/layer_shape.h"

namespace lb {

class PagePool {
 public:
  // Pages of one layer; no bytes: the layer keeps none in the pool.
  struct Layer {
    std::byte *k = nullptr, *v = nullptr;  // [n_pages, k_bytes], [n_pages, v_bytes]
    size_t k_bytes = 0, v_bytes = 0;       // of a page
  };

  // layers: those of every state that uses the pool. The stream must outlive the pool.
  PagePool(std::span<const LayerShape> layers, const StateOptions& options, int n_pages, Stream& stream);
  static size_t planned_bytes(std::span<const LayerShape> layers, const StateOptions& options, int n_pages);
  // The share of one layer.
  static size_t layer_bytes(std::span<const LayerShape> layers, int layer, const StateOptions& options, int n_pages);

  const Layer& layer(int i) const { return layers_[i]; }
  size_t page_bytes() const { return page_bytes_; }  // over all layers
  int n_pages() const { return static_cast<int>(counts_.size()); }
  int n_free() const;

  // Takes n free pages, the lowest first, with one reference each. False: fewer are free, and none was taken.
  bool take(int n, std::vector<int32_t>& pages);
  // Adds a reference to each page.
  void share(std::span<const int32_t> pages);
  // Gives back a reference to each page. A page without references is free.
  void release(std::span<const int32_t> pages);
  bool is_shared(int32_t page) const;
  bool is_shared(std::span<const int32_t> pages) const;  // any of them
  // Copies pages to and from the host: layer, then K before V, then page. Bytes: [pages.size() * page_bytes()]
  void read(std::span<const int32_t> pages, std::span<std::byte> to) const;
  void write(std::span<const int32_t> pages, std::span<const std::byte> from);
  // Sends copies of K and V of a page in all layers to the stream.
  void copy(int32_t from, int32_t to);

 private:
  static Layer carve_layer(std::span<const LayerShape> layers, int layer, const StateOptions& options, int n_pages,
                           Carver& carver);
  // Calls copy(memory) for K and V of the pages in all layers, in the order of read().
  template <class Copy>
  void for_memory(std::span<const int32_t> pages, Copy&& copy) const;

  Stream& stream_;
  std::unique_ptr<Memory> memory_;
  std::vector<Layer> layers_;
  size_t page_bytes_ = 0;

  mutable std::mutex mutex_;     // guards counts_ and free_
  std::vector<int32_t> counts_;  // [n_pages] references
  std::vector<int32_t> free_;    // a heap, its lowest page first
};

// References to some pages of a pool.
class PageRun {
 public:
  PageRun(std::shared_ptr<PagePool> pool, std::span<const int32_t> pages)
      : pool_(std::move(pool)), pages_(pages.begin(), pages.end()) {
    pool_->share(pages_);
  }
  ~PageRun() { pool_->release(pages_); }
  PageRun(const PageRun&) = delete;
  PageRun& operator=(const PageRun&) = delete;

  const PagePool& pool() const { return *pool_; }
  std::span<const int32_t> pages() const { return pages_; }
  bool is_shared() const { return pool_->is_shared(pages_); }  // somebody else holds some of the pages

 private:
  std::shared_ptr<PagePool> pool_;
  std::vector<int32_t> pages_;
};

}  // namespace lb
