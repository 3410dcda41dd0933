#include "state/page_pool.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "base/error.h"
#include "state/page_table.h"

namespace lb {

PagePool::PagePool(int n_pages, std::vector<std::shared_ptr<const PageMemory>> memories)
    : memories_(std::move(memories)), counts_(n_pages), run_counts_(n_pages), free_(n_pages) {
  for (int page = 0; page < n_pages; ++page) free_[page] = page;  // ascending: a heap
  for (const auto& memory : memories_) by_layer_.push_back(memory.get());
  std::ranges::stable_sort(by_layer_, {}, &PageMemory::first_layer);
}

size_t PagePool::page_bytes() const {
  size_t bytes = 0;
  for (const auto& memory : memories_) bytes += memory->page_bytes();
  return bytes;
}

int PagePool::n_free() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(free_.size());
}

bool PagePool::take(int n, std::vector<int32_t>& pages) {
  const std::lock_guard lock(mutex_);
  const auto missing = [&] { return n - static_cast<int>(free_.size()); };
  for (PageTable* lender : lenders_)
    while (missing() > 0) {  // pages that a PageRun or a fork shares do not become free
      const std::vector<int32_t> given = lender->give_up(missing());
      if (given.empty()) break;
      release_locked(given);
    }
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
  release_locked(pages);
}

void PagePool::release_locked(std::span<const int32_t> pages) {
  for (const int32_t page : pages) {
    LB_ASSERT(counts_[page] > 0);
    if (--counts_[page] > 0) continue;
    is_short_ = false;
    free_.push_back(page);
    std::ranges::push_heap(free_, std::greater());
  }
}

bool PagePool::is_shared(int32_t page) const {
  const std::lock_guard lock(mutex_);
  return counts_[page] > 1;
}

int PagePool::n_unshared(std::span<const int32_t> pages) const {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(std::ranges::count_if(pages, [&](int32_t page) { return counts_[page] == 1; }));
}

void PagePool::hold(std::span<const int32_t> pages) {
  share(pages);
  const std::lock_guard lock(mutex_);
  for (const int32_t page : pages) ++run_counts_[page];
}

void PagePool::let_go(std::span<const int32_t> pages) {
  const std::lock_guard lock(mutex_);
  for (const int32_t page : pages) --run_counts_[page];
  release_locked(pages);
}

bool PagePool::is_in_use(std::span<const int32_t> pages) const {
  const std::lock_guard lock(mutex_);
  return std::ranges::all_of(pages, [&](int32_t page) { return counts_[page] > run_counts_[page]; });
}

bool PagePool::is_short() const {
  const std::lock_guard lock(mutex_);
  return is_short_;
}

void PagePool::set_short() {
  const std::lock_guard lock(mutex_);
  is_short_ = true;
}

void PagePool::read(std::span<const int32_t> pages, std::span<std::byte> to) const {
  for (const PageMemory* memory : by_layer_) {
    const size_t bytes = pages.size() * memory->page_bytes();
    memory->read(pages, to.first(bytes));
    to = to.subspan(bytes);
  }
  LB_ASSERT(to.empty());
}

void PagePool::write(std::span<const int32_t> pages, std::span<const std::byte> from) {
  for (const PageMemory* memory : by_layer_) {
    const size_t bytes = pages.size() * memory->page_bytes();
    memory->write(pages, from.first(bytes));
    from = from.subspan(bytes);
  }
  LB_ASSERT(from.empty());
}

void PagePool::add_lender(PageTable& lender) {
  const std::lock_guard lock(mutex_);
  lenders_.push_back(&lender);
}

void PagePool::remove_lender(PageTable& lender) {
  const std::lock_guard lock(mutex_);
  std::erase(lenders_, &lender);
}

void PagePool::copy(int32_t from, int32_t to) {
  for (const auto& memory : memories_) memory->copy(from, to);
}

}  // namespace lb
