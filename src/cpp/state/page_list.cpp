#include "state/page_list.h"

#include <algorithm>
#include <iterator>

#include "base/error.h"

namespace lb {
namespace {

[[noreturn]] void fail_full(const PagePool& pool, int needed) {
  fail(ErrorCode::kMemory, "the KV cache has ", pool.n_free(), " free pages of ", kPageTokens, " tokens, and ", needed,
       " are needed", PagePool::kMakeRoom);
}

}  // namespace

PageList::PageList(std::shared_ptr<PagePool> pool, int capacity)
    : pool_(std::move(pool)), capacity_(capacity), entries_(pool_ ? n_pages(capacity) : 0) {
  pages_.reserve(entries_.size());
}

int64_t PageList::room(int n_tokens, int n_spare) const {
  const int last = n_tokens / kPageTokens;  // page of the next row
  const bool must_copy = last < end() && pool_->is_shared(pages_[last - first_]);
  const int spare = pool_->n_unshared(std::span(pages_).first(n_spare));
  return (int64_t{pool_->n_free()} + spare + end() - (must_copy ? 1 : 0)) * kPageTokens - n_tokens;
}

bool PageList::take_needed(int n, std::vector<int32_t>& pages) {
  if (pool_->take(n, pages)) return true;
  pool_->set_short();
  return false;
}

std::optional<PageList::Growth> PageList::take(int n_now, int n_tokens, int rows_ahead, int n_spare) {
  const int next = n_now / kPageTokens, old_end = end();
  Growth growth{{}, n_tokens > n_now && next < old_end && pool_->is_shared(pages_[next - first_]), old_end};
  if (growth.must_copy) growth.first_changed = next;
  const int missing = std::max(n_pages(n_tokens) - old_end, 0), needed = missing + (growth.must_copy ? 1 : 0);
  const int with_ahead = n_pages(std::min(n_tokens + rows_ahead, capacity_));
  const int short_by = needed + std::max(with_ahead - old_end - missing, 0) - pool_->n_free();
  pool_->release(give_up(std::clamp(short_by, 0, n_spare)));
  if (!take_needed(needed, growth.fresh)) return std::nullopt;
  for (int n = old_end + missing; n < with_ahead && pool_->take(1, growth.fresh); ++n) {
  }
  return growth;
}

void PageList::grow(const Growth& growth) {
  auto next = growth.fresh.begin();
  if (growth.must_copy) {
    int32_t& page = pages_[growth.first_changed - first_];
    pool_->release({&page, 1});
    page = *next++;
  }
  pages_.insert(pages_.end(), next, growth.fresh.end());
}

void PageList::give_back(int first_page) {
  const int kept = std::max(first_page - first_, 0);
  if (kept >= static_cast<int>(pages_.size())) return;
  pool_->release(std::span(pages_).subspan(kept));
  pages_.resize(kept);
}

std::vector<int32_t> PageList::give_up(int count) {
  const std::vector<int32_t> given(pages_.begin(), pages_.begin() + count);
  pages_.erase(pages_.begin(), pages_.begin() + count);
  first_ += count;
  return given;
}

void PageList::clear(int first) {
  give_back(0);
  first_ = first;
}

bool PageList::take_back(int n) {
  LB_ASSERT(pages_.empty());
  return take_needed(n, pages_);
}

void PageList::replace(int first_page, std::span<const int32_t> pages) {
  LB_ASSERT(first_page >= first_ && first_page <= end() && first_page + pages.size() <= entries_.size());
  const std::span old = std::span(pages_).subspan(first_page - first_);
  const auto keeps = [&](size_t i) { return i < pages.size() && pages[i] == kOwnPage && !pool_->is_shared(old[i]); };
  std::vector<int32_t> next(pages.begin(), pages.end()), given_back, fresh;
  for (size_t i = 0; i < old.size(); ++i)
    if (keeps(i)) {
      next[i] = old[i];
    } else {
      given_back.push_back(old[i]);
    }
  const auto needed = static_cast<int>(std::ranges::count(next, kOwnPage));
  if (!take_needed(needed, fresh)) fail_full(*pool_, needed);
  std::vector<int32_t> shared;
  std::ranges::copy_if(pages, std::back_inserter(shared), [](int32_t page) { return page != kOwnPage; });
  pool_->share(shared);
  pool_->release(given_back);
  for (auto page = fresh.begin(); int32_t& entry : next)
    if (entry == kOwnPage) entry = *page++;
  pages_.resize(first_page - first_);
  pages_.insert(pages_.end(), next.begin(), next.end());
}

std::vector<int32_t> PageList::exclusive() const {
  std::vector<int32_t> own;
  std::ranges::copy_if(pages_, std::back_inserter(own), [&](int32_t page) { return !pool_->is_shared(page); });
  return own;
}

// Each turn of the loop may make this list give up spare pages of its own.
std::vector<int32_t> PageList::take_renewal(int count) {
  std::vector<int32_t> fresh;
  for (int missing; (missing = count - static_cast<int>(exclusive().size() + fresh.size())) > 0;)
    if (!pool_->take(missing, fresh)) {
      pool_->release(fresh);
      pool_->set_short();
      fail_full(*pool_, missing);
    }
  return fresh;
}

void PageList::renew(int first, int count, std::span<const int32_t> fresh) {
  std::vector<int32_t> next = exclusive();
  next.resize(std::min<size_t>(next.size(), count - fresh.size()));
  pool_->share(next);  // clear() drops the other reference
  next.insert(next.end(), fresh.begin(), fresh.end());
  clear(first);
  pages_ = std::move(next);
}

void PageList::set_shared(int first, std::span<const int32_t> pages) {
  pool_->share(pages);
  clear(first);
  pages_.assign(pages.begin(), pages.end());
}

void PageList::share(const PageList& from, int end) {
  LB_ASSERT(pool_ == from.pool_);
  if (!pool_) return;
  set_shared(from.first_, from.pages(from.first_, end));
  entries_ = from.entries_;
}

PageList::Range PageList::update_entries(int first_page) {
  int end = this->end(), first = std::min(std::max(first_page, first_), end);
  const auto differs = [&](int i) { return entries_[i] != pages_[i - first_]; };
  while (first < end && !differs(first)) ++first;
  while (end > first && !differs(end - 1)) --end;
  std::copy(pages_.begin() + (first - first_), pages_.begin() + (end - first_), entries_.begin() + first);
  return {first, end};
}

}  // namespace lb
