// PageMemory: the K and V of one shard's pages of a kind. Page p is one index for K and V of every layer of that kind.
// PagePool tracks which pages are in use. All ops and copies go to one stream, in order.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "base/memory.h"
#include "ops/stream.h"
#include "state/layer_shape.h"

namespace lb {

class PageMemory {
 public:
  // Pages of one layer; 0 bytes: the layer has no pages here, or no values of their own.
  struct Layer {
    std::byte *k = nullptr, *v = nullptr;  // [n_pages, k_bytes], [n_pages, v_bytes]
    size_t k_bytes = 0, v_bytes = 0;       // of a page
  };

  // layers: the layers of all states; the layers in `range` that keep these rows have pages here. The stream must
  // outlive the memory.
  PageMemory(std::span<const LayerShape> layers, KvRows rows, const StateOptions& options, int n_pages, Stream& stream,
             LayerRange range = {});
  static size_t planned_bytes(std::span<const LayerShape> layers, KvRows rows, const StateOptions& options, int n_pages,
                              LayerRange range = {});
  // The share of one layer.
  static size_t layer_bytes(std::span<const LayerShape> layers, int layer, KvRows rows, const StateOptions& options,
                            int n_pages);

  const Layer& layer(int i) const { return layers_[i]; }
  int first_layer() const { return first_layer_; }
  size_t page_bytes() const { return page_bytes_; }  // over all layers
  // Copies pages to and from the host, ordered by layer, then K before V, then page. Size: pages.size() * page_bytes()
  // bytes.
  void read(std::span<const int32_t> pages, std::span<std::byte> to) const;
  void write(std::span<const int32_t> pages, std::span<const std::byte> from) const;
  // Sends copies of a page's K and V in all layers to the stream.
  void copy(int32_t from, int32_t to) const;

 private:
  static Layer carve_layer(std::span<const LayerShape> layers, int layer, KvRows rows, const StateOptions& options,
                           int n_pages, Carver& carver);
  // Calls copy(memory) for K and V of the pages in all layers, in the order of read().
  template <class Copy>
  void for_memory(std::span<const int32_t> pages, Copy&& copy) const;

  Stream& stream_;
  std::unique_ptr<Memory> memory_;
  std::vector<Layer> layers_;
  int first_layer_;
  size_t page_bytes_ = 0;
};

}  // namespace lb
