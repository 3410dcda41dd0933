#include "state/page_memory.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace lb {

PageMemory::Layer PageMemory::carve_layer(std::span<const LayerShape> layers, int layer, KvRows rows,
                                          const StateOptions& options, int n_pages, Carver& carver) {
  if (!keeps(layers, layer, rows)) return {};
  const auto& shape = std::get<KvShape>(layers[layer]);
  const KvStorage storage = storage_of(shape, options);
  std::byte* keys = carver.take<std::byte>(storage.k_bytes, n_pages);
  std::byte* values = storage.v_bytes > 0 ? carver.take<std::byte>(storage.v_bytes, n_pages) : nullptr;
  return {keys, values, storage.k_bytes, storage.v_bytes};
}

size_t PageMemory::layer_bytes(std::span<const LayerShape> layers, int layer, KvRows rows, const StateOptions& options,
                               int n_pages) {
  Carver counter;
  carve_layer(layers, layer, rows, options, n_pages, counter);
  return counter.used();
}

size_t PageMemory::planned_bytes(std::span<const LayerShape> layers, KvRows rows, const StateOptions& options,
                                 int n_pages, LayerRange range) {
  Carver counter;
  for (int i = 0; i < static_cast<int>(layers.size()); ++i)
    if (range.has(i)) carve_layer(layers, i, rows, options, n_pages, counter);
  return counter.used();
}

PageMemory::PageMemory(std::span<const LayerShape> layers, KvRows rows, const StateOptions& options, int n_pages,
                       Stream& stream, LayerRange range)
    : stream_(stream),
      memory_(stream.reserve(std::max<size_t>(planned_bytes(layers, rows, options, n_pages, range), 1))),
      first_layer_(range.first) {
  Carver carver(*memory_);
  for (int i = 0; i < static_cast<int>(layers.size()); ++i) {
    layers_.push_back(range.has(i) ? carve_layer(layers, i, rows, options, n_pages, carver) : Layer{});
    page_bytes_ += layers_.back().k_bytes + layers_.back().v_bytes;
  }
}

template <class Copy>
void PageMemory::for_memory(std::span<const int32_t> pages, Copy&& copy) const {
  for (const Layer& layer : layers_)
    for (const auto& [data, bytes] : {std::pair(layer.k, layer.k_bytes), std::pair(layer.v, layer.v_bytes)})
      for (size_t i = 0, next; bytes > 0 && i < pages.size(); i = next) {  // consecutive pages take one copy
        for (next = i + 1; next < pages.size() && pages[next] == pages[next - 1] + 1; ++next) {
        }
        copy(std::span(data + pages[i] * bytes, (next - i) * bytes));
      }
}

void PageMemory::read(std::span<const int32_t> pages, std::span<std::byte> to) const {
  LB_ASSERT(to.size() == pages.size() * page_bytes_);
  for_memory(pages, [&](std::span<std::byte> memory) {
    stream_.download(to.data(), memory.data(), memory.size());
    to = to.subspan(memory.size());
  });
}

void PageMemory::write(std::span<const int32_t> pages, std::span<const std::byte> from) const {
  LB_ASSERT(from.size() == pages.size() * page_bytes_);
  for_memory(pages, [&](std::span<std::byte> memory) {
    stream_.upload(memory.data(), from.data(), memory.size());
    from = from.subspan(memory.size());
  });
}

void PageMemory::copy(int32_t from, int32_t to) const {
  for (const Layer& layer : layers_) {
    for (const auto& [data, bytes] : {std::pair(layer.k, layer.k_bytes), std::pair(layer.v, layer.v_bytes)})
      if (bytes > 0) stream_.copy(data + to * bytes, data + from * bytes, bytes);
  }
}

}  // namespace lb
