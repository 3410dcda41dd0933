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

PageTable::PageTable(const StateOptions& options, bool has_folding, const Window& window, const KvPools& pools)
    : options_(options),
      has_folding_(has_folding),
      window_(window),
      all_(pools.all, options.capacity),
      windows_(pools.windows, options.capacity),
      numbers_{.n_past = 0, .key_buffer = 0, .n_accepted = 0, .n_chunk = kMaxTree, .accepted = {}, .chunk = {}} {
  LB_ASSERT(window_.exists() == (pools.windows != nullptr));
  std::ranges::copy(kIdentity, numbers_.chunk);
  if (window_.exists()) windows_.pool()->add_lender(*this);
}

PageTable::~PageTable() {
  if (window_.exists()) windows_.pool()->remove_lender(*this);
}

int PageTable::n_spare() const {
  const int first = window_.first_page(std::max(n_tokens_ - n_staged_ - kMaxTree, 0));
  return std::clamp(first - windows_.first(), 0, static_cast<int>(windows_.pages().size()));
}

std::vector<int32_t> PageTable::give_up(int n) { return windows_.give_up(std::min(n, n_spare())); }

int PageTable::room() const {
  int64_t rows = all_.room(n_tokens_, 0);
  if (window_.exists()) rows = std::min(rows, windows_.room(n_tokens_, n_spare()));
  return static_cast<int>(std::clamp<int64_t>(rows, 0, options_.capacity - n_tokens_));
}

int PageTable::window_rows(int n_tokens) const {
  const int rows = n_tokens - n_tokens_, append = std::max(options_.append_rows, kMaxTree);
  if (rows <= append) return rows;
  const int kept = windows_.first() + n_spare();  // the first page that give_up() leaves
  const int end = kept + window_.max_pages() + n_pages(kMaxTree) + n_pages(append);
  return std::clamp(end * kPageTokens - n_tokens_, append, rows);
}

std::optional<PageTable::Growth> PageTable::take(int n_tokens, int rows_ahead) {
  std::optional<PageList::Growth> all = all_.take(n_tokens_, n_tokens, rows_ahead, 0);
  if (!all) return std::nullopt;
  if (!window_.exists()) return Growth{*all, {{}, false, all->first_changed}};
  std::optional<PageList::Growth> windows =
      windows_.take(n_tokens_, n_tokens_ + window_rows(n_tokens), rows_ahead, n_spare());
  if (windows) return Growth{std::move(*all), std::move(*windows)};
  all_.pool()->release(all->fresh);
  return std::nullopt;
}

void PageTable::grow(const Growth& growth) {
  all_.grow(growth.all);
  windows_.grow(growth.windows);
}

void PageTable::give_back(int first_page) {
  all_.give_back(first_page);
  windows_.give_back(first_page);
}

void PageTable::drop_pages() {
  all_.clear();
  windows_.clear();
}

void PageTable::lend_pages() {
  all_.clear();
  windows_.clear(windows_.first());
}

bool PageTable::take_back() {
  const int n = n_pages(n_tokens_);
  if (!all_.take_back(n)) return false;
  if (!window_.exists() || windows_.take_back(n - windows_.first())) return true;
  all_.clear();
  return false;
}

void PageTable::set_pages(int first_page, std::span<const int32_t> pages, std::span<const int32_t> windows) {
  LB_ASSERT(!appending_);
  if (!window_.exists()) return all_.replace(first_page, pages);
  const int n = first_page + static_cast<int>(pages.size()), first = window_.first_page(n * kPageTokens);
  if (!windows.empty()) {
    LB_ASSERT(std::ssize(windows) == n - first);
    all_.replace(first_page, pages);
    return windows_.set_shared(first, windows);
  }
  const std::vector<int32_t> fresh = windows_.take_renewal(n - first);
  try {
    all_.replace(first_page, pages);
  } catch (...) {
    windows_.pool()->release(fresh);
    throw;
  }
  windows_.renew(first, n - first, fresh);
}

void PageTable::share(const PageTable& from) {
  LB_ASSERT(!from.appending_ && !from.appended_);
  const int end = n_pages(from.n_tokens_);
  all_.share(from.all_, end);
  windows_.share(from.windows_, end);
  appending_ = appended_ = false;
  n_tokens_ = from.n_tokens_;
  n_folded_ = from.n_folded_;
  pending_is_by_row_ = from.pending_is_by_row_;
  numbers_ = from.numbers_;
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
