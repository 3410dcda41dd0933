// PagePool: the allocator of KV pages of one kind for all sequences of an engine. Page p is the same index in the
// memory of every shard (PageMemory). Pages have reference counts: sequences with a common prefix hold the same pages,
// and a sequence copies a shared page before it writes it. All users of a pool send their ops, in order, to the streams
// of its memories. So a page may be released and reused by another sequence while ops sent earlier still access it.
#pragma once

#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "state/page_memory.h"

namespace lb {

class PageTable;

class PagePool {
 public:
  // The last line of errors about a full pool.
  static constexpr const char* kMakeRoom = ". Reset or swap out other sessions, or load the model with more kv_tokens";

  // memories: one per shard, each with n_pages pages.
  PagePool(int n_pages, std::vector<std::shared_ptr<const PageMemory>> memories);

  const PageMemory& memory(int shard) const { return *memories_[shard]; }
  size_t page_bytes() const;  // over all layers and shards
  int n_pages() const { return static_cast<int>(counts_.size()); }
  int n_free() const;

  // Takes the n lowest free pages, with one reference each. If fewer are free, lenders first give up spare pages.
  // False: fewer than n are free; none was taken.
  bool take(int n, std::vector<int32_t>& pages);
  // Adds a reference to each page.
  void share(std::span<const int32_t> pages);
  // Drops a reference to each page. A page without references is free.
  void release(std::span<const int32_t> pages);
  bool is_shared(int32_t page) const;
  int n_unshared(std::span<const int32_t> pages) const;
  // As share() and release(), for a PageRun.
  void hold(std::span<const int32_t> pages);
  void let_go(std::span<const int32_t> pages);
  // Whether sequences hold all of the pages, so that they stay allocated without the PageRuns.
  bool is_in_use(std::span<const int32_t> pages) const;
  // Whether a sequence lacked pages of this pool, and none has become free since.
  bool is_short() const;
  void set_short();
  // Copies pages to and from the host, shard by shard (PageMemory::read).
  void read(std::span<const int32_t> pages, std::span<std::byte> to) const;
  void write(std::span<const int32_t> pages, std::span<const std::byte> from);
  // Sends copies of a page's K and V to the streams of all shards.
  void copy(int32_t from, int32_t to);
  // Sequences that hold pages before their window (PageTable::give_up).
  void add_lender(PageTable& lender);
  void remove_lender(PageTable& lender);

 private:
  void release_locked(std::span<const int32_t> pages);

  std::vector<std::shared_ptr<const PageMemory>> memories_;  // [shards]
  std::vector<const PageMemory*> by_layer_;  // of memories_: read() and write() have one order on any shards
  mutable std::mutex mutex_;                 // guards the fields below
  std::vector<int32_t> counts_;              // [n_pages] references
  std::vector<int32_t> run_counts_;          // [n_pages] references from PageRuns, which counts_ includes
  std::vector<int32_t> free_;                // a min-heap
  bool is_short_ = false;
  std::vector<PageTable*> lenders_;
};

// References to some pages of a pool, which are not a sequence's.
class PageRun {
 public:
  PageRun(std::shared_ptr<PagePool> pool, std::span<const int32_t> pages)
      : pool_(std::move(pool)), pages_(pages.begin(), pages.end()) {
    pool_->hold(pages_);
  }
  ~PageRun() { pool_->let_go(pages_); }
  PageRun(const PageRun&) = delete;
  PageRun& operator=(const PageRun&) = delete;

  const PagePool& pool() const { return *pool_; }
  std::span<const int32_t> pages() const { return pages_; }
  bool is_in_use() const { return pool_->is_in_use(pages_); }  // PagePool::is_in_use()

 private:
  std::shared_ptr<PagePool> pool_;
  std::vector<int32_t> pages_;
};

}  // namespace lb
