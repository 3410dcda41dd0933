#include "state/page_table.h"

#include <algorithm>
#include <array>

#include "base/error.h"

namespace lb {
namespace {

constexpr std::array<int32_t, kMaxTree> kIdentity = [] {
  std::array<int32_t, kMaxTree> path{};
  for (int i = 0; i < kMaxTree; ++i) path[i] = i;
  return path;
}();

}  // namespace

PageTable::PageTable(const StateOptions& options, bool has_folding, std::shared_ptr<PagePool> pool)
    : options_(options),
      has_folding_(has_folding),
      pool_(std::move(pool)),
      entries_(n_pages(options.capacity)),
      numbers_{.n_past = 0, .key_buffer = 0, .n_accepted = 0, .n_chunk = kMaxTree, .accepted = {}, .chunk = {}} {
  std::ranges::copy(kIdentity, numbers_.chunk);
  pages_.reserve(entries_.size());
}

int PageTable::room() const {
  const int last = n_tokens_ / kPageTokens;  // page of the next row
  const bool must_copy = last < static_cast<int>(pages_.size()) && pool_->is_shared(pages_[last]);
  const int64_t rows = (int64_t{pool_->n_free()} + std::ssize(pages_) - (must_copy ? 1 : 0)) * kPageTokens;
  return static_cast<int>(std::clamp<int64_t>(rows - n_tokens_, 0, options_.capacity - n_tokens_));
}

std::optional<PageTable::Growth> PageTable::take(int n_tokens, int rows_ahead) {
  const int first = n_tokens_ / kPageTokens, n_owned = static_cast<int>(pages_.size());
  Growth growth{{}, n_tokens > n_tokens_ && first < n_owned && pool_->is_shared(pages_[first]), n_owned};
  if (growth.must_copy) growth.first_changed = first;
  const int needed = std::max(n_pages(n_tokens) - n_owned, 0);
  if (!pool_->take(needed + (growth.must_copy ? 1 : 0), growth.fresh)) return std::nullopt;
  const int with_ahead = n_pages(std::min(n_tokens + rows_ahead, options_.capacity));
  for (int n = n_owned + needed; n < with_ahead && pool_->take(1, growth.fresh); ++n) {
  }
  return growth;
}

void PageTable::grow(const Growth& growth) {
  auto next = growth.fresh.begin();
  if (growth.must_copy) {
    pool_->release({&pages_[growth.first_changed], 1});
    pages_[growth.first_changed] = *next++;
  }
  pages_.insert(pages_.end(), next, growth.fresh.end());
}

void PageTable::give_back(int first_page) {
  if (first_page >= static_cast<int>(pages_.size())) return;
  pool_->release(std::span(pages_).subspan(first_page));
  pages_.resize(first_page);
}

bool PageTable::take_back(int n) {
  LB_ASSERT(pages_.empty());
  return pool_->take(n, pages_);
}

void PageTable::set_pages(int first_page, std::span<const int32_t> pages) {
  LB_ASSERT(!appending_ && first_page <= static_cast<int>(pages_.size()) &&
            first_page + pages.size() <= entries_.size());
  const auto keeps = [&](size_t i) {
    return i < pages.size() && pages[i] == kOwnPage && !pool_->is_shared(pages_[first_page + i]);
  };
  const std::span old = std::span(pages_).subspan(first_page);
  std::vector<int32_t> next(pages.begin(), pages.end()), given_back, fresh;
  for (size_t i = 0; i < old.size(); ++i)
    if (keeps(i)) {
      next[i] = old[i];
    } else {
      given_back.push_back(old[i]);
    }
  const auto needed = static_cast<int>(std::ranges::count(next, kOwnPage));
  LB_CHECK(pool_->take(needed, fresh), kMemory, "the KV cache has ", pool_->n_free(), " free pages of ", kPageTokens,
           " tokens, and ", needed, " are needed", kMakeRoom);
  std::vector<int32_t> shared;
  std::ranges::copy_if(pages, std::back_inserter(shared), [](int32_t page) { return page != kOwnPage; });
  pool_->share(shared);
  pool_->release(given_back);
  for (auto page = fresh.begin(); int32_t& entry : next)
    if (entry == kOwnPage) entry = *page++;
  pages_.resize(first_page);
  pages_.insert(pages_.end(), next.begin(), next.end());
}

void PageTable::share(const PageTable& from) {
  LB_ASSERT(pool_ == from.pool_ && !from.appending_ && !from.appended_);
  const auto shared = std::span(from.pages_).first(n_pages(from.n_tokens_));
  pool_->share(shared);
  give_back(0);
  pages_.assign(shared.begin(), shared.end());
  entries_ = from.entries_;
  appending_ = appended_ = false;
  n_tokens_ = from.n_tokens_;
  n_folded_ = from.n_folded_;
  pending_is_by_row_ = from.pending_is_by_row_;
  numbers_ = from.numbers_;
}

PageTable::Range PageTable::update_entries(int first_page) {
  const auto n = static_cast<int>(pages_.size());
  int first = first_page, end = n;
  while (first < n && entries_[first] == pages_[first]) ++first;
  while (end > first && entries_[end - 1] == pages_[end - 1]) --end;
  std::copy(pages_.begin() + first, pages_.begin() + end, entries_.begin() + first);
  return {first, end};
}

void PageTable::set_folded() {
  n_folded_ = n_tokens_;
  numbers_.n_accepted = 0;
}

void PageTable::set_length(int n_tokens) {
  LB_ASSERT(n_tokens >= 0 && n_tokens <= options_.capacity);
  appending_ = appended_ = false;
  n_tokens_ = n_tokens;
  set_folded();
}

void PageTable::rewind(int n_tokens) {
  appended_ = false;
  n_tokens_ = n_tokens;
  if (has_folding_) {
    numbers_.n_accepted = n_tokens - n_folded_;  // a prefix of the accepted path; the rest was never folded
  } else {
    n_folded_ = n_tokens;
  }
}

void PageTable::check_rows(int rows) const {
  LB_ASSERT(!appending_ && rows > 0);
  LB_CHECK(rows <= options_.capacity - n_tokens_, kInvalid, "the context holds ", options_.capacity, " tokens; ",
           n_tokens_, " are used and ", rows, " more do not fit. Load the model with a larger context");
  LB_ASSERT(rows <= std::max(options_.append_rows, kMaxTree));
}

void PageTable::begin_append(int rows, bool is_tree) {
  LB_ASSERT(!is_tree || rows <= kMaxTree);
  appending_ = true;
  appended_ = false;
  is_tree_ = is_tree;
  n_rows_ = rows;
  n_chunks_ = (rows + kMaxTree - 1) / kMaxTree;
  set_past();
}

void PageTable::end_append() {
  LB_ASSERT(appending_);
  appending_ = false;
  appended_ = true;
  numbers_.key_buffer = (numbers_.key_buffer + n_chunks_) % 2;
  // S now includes all rows committed before, and every chunk of this append except the last.
  n_folded_ = n_tokens_ + (n_chunks_ - 1) * kMaxTree;
  numbers_.n_accepted = 0;
  pending_is_by_row_ = is_by_row();
}

void PageTable::commit_chain(int keep) {
  LB_ASSERT(appended_ && !is_tree_ && keep >= 0 && keep <= n_rows_);
  const int in_last_chunk = n_tokens_ + keep - n_folded_;
  LB_CHECK(!has_folding_ || in_last_chunk >= 0, kInvalid, "keeping ", keep, " of ", n_rows_,
           " rows is not possible: recurrent layers have folded all but the last ", n_tokens_ + n_rows_ - n_folded_);
  appended_ = false;
  n_tokens_ += keep;
  if (has_folding_) {
    numbers_.n_accepted = in_last_chunk;
    std::copy_n(kIdentity.begin(), in_last_chunk, numbers_.accepted);
  } else {
    n_folded_ = n_tokens_;
  }
}

bool PageTable::accept(std::span<const int32_t> path) {
  LB_ASSERT(appended_ && is_tree_);
  const int n = static_cast<int>(path.size());
  for (int i = 0; i < n; ++i)
    LB_CHECK(path[i] >= i && path[i] < n_rows_ && (i == 0 || path[i] > path[i - 1]), kInvalid,
             "an accepted path must ascend from the root; entry ", i, " is ", path[i]);
  std::ranges::copy(path, numbers_.accepted);
  numbers_.n_accepted = n;
  return !std::equal(path.begin(), path.end(), kIdentity.begin());
}

void PageTable::end_commit() {
  n_tokens_ += numbers_.n_accepted;
  appended_ = false;
  if (!has_folding_) n_folded_ = n_tokens_;
}

}  // namespace lb
