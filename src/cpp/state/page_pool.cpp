#include "state/page_pool.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "base/error.h"

namespace lb {

PagePool::Layer PagePool::carve_layer(std::span<const LayerShape> layers, int layer, const StateOptions& options,
                                      int n_pages, Carver& carver) {
  if (!keeps_all_rows(layers, layer)) return {};
  const auto& shape = std::get<KvShape>(layers[layer]);
  const size_t k = lb::page_bytes(shape, options.k_type), v = lb::page_bytes(shape, options.v_type);
  std::byte* keys = carver.take<std::byte>(n_pages * k);
  return {keys, carver.take<std::byte>(n_pages * v), k, v};
}

size_t PagePool::layer_bytes(std::span<const LayerShape> layers, int layer, const StateOptions& options, int n_pages) {
  Carver counter;
  carve_layer(layers, layer, options, n_pages, counter);
  return counter.used();
}

size_t PagePool::planned_bytes(std::span<const LayerShape> layers, const StateOptions& options, int n_pages) {
  size_t bytes = 0;
  for (int i = 0; i < static_cast<int>(layers.size()); ++i) bytes += layer_bytes(layers, i, options, n_pages);
  return bytes;
}

PagePool::PagePool(std::span<const LayerShape> layers, const StateOptions& options, int n_pages, Stream& stream)
    : stream_(stream),
      memory_(stream.reserve(std::max<size_t>(planned_bytes(layers, options, n_pages), 1))),
      counts_(n_pages),
      free_(n_pages) {
  Carver carver(*memory_);
  for (int i = 0; i < static_cast<int>(layers.size()); ++i) {
    layers_.push_back(carve_layer(layers, i, options, n_pages, carver));
    page_bytes_ += layers_.back().k_bytes + layers_.back().v_bytes;
  }
  for (int page = 0; page < n_pages; ++page) free_[page] = page;  // ascending: a heap
}

int PagePool::n_free() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(free_.size());
}

bool PagePool::take(int n, std::vector<int32_t>& pages) {
  const std::lock_guard lock(mutex_);
  if (n > static_cast<int>(free_.size())) return false;
  for (; n > 0; --n) {
    std::ranges::pop_heap(free_, std::greater());
    counts_[free_.back()] = 1;
    pages.push_back(free_.back());
    free_.pop_back();
  }
  return true;
}

void PagePool::share(std::span<const int32_t> pages) {
  const std::lock_guard lock(mutex_);
  for (const int32_t page : pages) {
    LB_ASSERT(counts_[page] > 0);
    ++counts_[page];
  }
}

void PagePool::release(std::span<const int32_t> pages) {
  const std::lock_guard lock(mutex_);
  for (const int32_t page : pages) {
    LB_ASSERT(counts_[page] > 0);
    if (--counts_[page] > 0) continue;
    free_.push_back(page);
    std::ranges::push_heap(free_, std::greater());
  }
}

bool PagePool::is_shared(int32_t page) const {
  const std::lock_guard lock(mutex_);
  return counts_[page] > 1;
}

bool PagePool::is_shared(std::span<const int32_t> pages) const {
  const std::lock_guard lock(mutex_);
  return std::ranges::any_of(pages, [&](int32_t page) { return counts_[page] > 1; });
}

template <class Copy>
void PagePool::for_memory(std::span<const int32_t> pages, Copy&& copy) const {
  for (const Layer& layer : layers_)
    for (const auto& [data, bytes] : {std::pair(layer.k, layer.k_bytes), std::pair(layer.v, layer.v_bytes)})
      for (size_t i = 0, next; bytes > 0 && i < pages.size(); i = next) {  // consecutive pages are one copy
        for (next = i + 1; next < pages.size() && pages[next] == pages[next - 1] + 1; ++next) {
        }
        copy(std::span(data + pages[i] * bytes, (next - i) * bytes));
      }
}

void PagePool::read(std::span<const int32_t> pages, std::span<std::byte> to) const {
  LB_ASSERT(to.size() == pages.size() * page_bytes_);
  for_memory(pages, [&](std::span<std::byte> memory) {
    stream_.download(to.data(), memory.data(), memory.size());
    to = to.subspan(memory.size());
  });
}

void PagePool::write(std::span<const int32_t> pages, std::span<const std::byte> from) {
  LB_ASSERT(from.size() == pages.size() * page_bytes_);
  for_memory(pages, [&](std::span<std::byte> memory) {
    stream_.upload(memory.data(), from.data(), memory.size());
    from = from.subspan(memory.size());
  });
}

void PagePool::copy(int32_t from, int32_t to) {
  for (const Layer& layer : layers_) {
    if (layer.k_bytes == 0) continue;
    stream_.copy(layer.k + to * layer.k_bytes, layer.k + from * layer.k_bytes, layer.k_bytes);
    stream_.copy(layer.v + to * layer.v_bytes, layer.v + from * layer.v_bytes, layer.v_bytes);
  }
}

}  // namespace lb
