// PageList: the pages that one sequence holds in one pool, and the page table as the devices have it. Pages [first(),
// end()) of the sequence, in order: all pages, or those from the window on.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "state/page_pool.h"

namespace lb {

class PageList {
 public:
  static constexpr int32_t kOwnPage = -1;  // for replace()

  // pool: null if the model has no layers with such pages; the list then stays empty. capacity: of the sequence, in
  // tokens.
  PageList(std::shared_ptr<PagePool> pool, int capacity);
  ~PageList() { clear(); }
  PageList(const PageList&) = delete;
  PageList& operator=(const PageList&) = delete;

  const std::shared_ptr<PagePool>& pool() const { return pool_; }
  int first() const { return first_; }
  int end() const { return first_ + static_cast<int>(pages_.size()); }
  std::span<const int32_t> pages() const { return pages_; }
  std::span<const int32_t> pages(int first, int end) const {
    return std::span(pages_).subspan(first - first_, end - first);
  }
  std::span<const int32_t> entries() const { return entries_; }  // [pages of the capacity] as uploaded
  // Rows that fit after n_tokens rows in own and free pages. n_spare: first pages that the list could give back.
  int64_t room(int n_tokens, int n_spare) const;

  // Pages by which a list grows.
  struct Growth {
    std::vector<int32_t> fresh;  // taken from the pool
    bool must_copy = false;      // the first fresh page replaces the shared page that holds the next row
    int first_changed = 0;       // entry
  };
  // Takes pages from the pool for n_tokens tokens of a sequence of n_now, and for rows_ahead more if there are enough.
  // Only the page of the next row can be shared and written, so it may need a copy. n_spare: as in room(); they are
  // given back if the pool is short. None: the pool has too few pages.
  std::optional<Growth> take(int n_now, int n_tokens, int rows_ahead, int n_spare);
  // Adds the pages. The caller has copied the shared page, if any.
  void grow(const Growth& growth);
  void give_back(int first_page);  // pages from first_page on
  // Removes the first pages and returns them, for the caller to release.
  std::vector<int32_t> give_up(int count);
  // Gives all pages back; the list then begins at page `first`.
  void clear(int first = 0);
  bool take_back(int n);  // takes n pages for an empty list
  // Replaces the pages from first_page on by these pages of the pool, shared. kOwnPage: a fresh private page. Throws
  // kMemory and changes nothing if the pool has too few.
  void replace(int first_page, std::span<const int32_t> pages);
  // Replaces all pages by these pages of the pool, shared, from page `first` on.
  void set_shared(int first, std::span<const int32_t> pages);
  // Replaces all pages by `count` private ones with undefined contents, from page `first` on. fresh: the pages that the
  // list lacks for that, from take_renewal(), which throws kMemory if the pool has too few.
  std::vector<int32_t> take_renewal(int count);
  void renew(int first, int count, std::span<const int32_t> fresh);
  // Shares the pages before `end` of another list of the pool, and copies its uploaded entries.
  void share(const PageList& from, int end);
  // Entries [first, end) to upload, from first_page on. Stale entries outside the list may stay: a kernel may look them
  // up, but accesses no row there.
  struct Range {
    int first, end;
  };
  Range update_entries(int first_page);

 private:
  std::vector<int32_t> exclusive() const;  // pages that nobody shares
  // Takes pages that the sequence needs: if the pool lacks them, it is short.
  bool take_needed(int n, std::vector<int32_t>& pages);

  std::shared_ptr<PagePool> pool_;
  int capacity_;
  int first_ = 0;
  std::vector<int32_t> pages_;    // [end() - first()] of the pool
  std::vector<int32_t> entries_;  // [pages of the capacity]
};

}  // namespace lb
