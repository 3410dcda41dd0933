// The timeline's state as pages and bytes: reserving, swapping and sharing KV pages; windows, recurrent state and
// assembled pieces for prefix caches; whole snapshots.
#include <algorithm>
#include <iterator>

#include "base/error.h"
#include "engine/timeline.h"
#include "state/snapshot.h"

namespace lb {
namespace {

// Whole pages of a pool, which has pages of `page` bytes; no pool: no bytes.
size_t checked_bytes(const Timeline::PagePiece& piece, const PagePool* pool, size_t page) {
  if (const auto* run = std::get_if<const PageRun*>(&piece)) {
    LB_CHECK(&(*run)->pool() == pool, kInvalid, "the pages belong to another engine, or to other layers");
    return (*run)->pages().size() * page;
  }
  const size_t size = std::get<std::span<const std::byte>>(piece).size();
  LB_CHECK(size == 0 || (page > 0 && size % page == 0), kInvalid, "a piece must be whole pages of ", page,
           " bytes, got ", size, " bytes");
  return size;
}

}  // namespace

bool Timeline::reserve(int n_tokens) {
  LB_CHECK(n_tokens <= context(), kInvalid, n_tokens, " tokens do not fit the context of ", context(),
           "; load the model with a larger context");
  check_idle();
  const std::lock_guard lock(turn());
  return state_.reserve(n_tokens);
}

int Timeline::room() const {
  const std::lock_guard lock(turn());
  return state_.room();
}

void Timeline::swap_out() {
  check_committed("swap out");
  if (is_swapped_out()) return;
  const std::lock_guard lock(turn());
  state_.swap_out();
}

void Timeline::fork(Timeline& from) {
  const std::lock_guard lock(turn());
  state_.fork(from.state_);
  tokens_ = from.tokens_;
  append_ends_ = from.append_ends_;
  images_ = from.images_;
  n_text_ = from.n_text_;
  forget_append();
  n_unchanged_ = 0;
  ++revision_;
}

void Timeline::check_pages(int first, int count) const {
  LB_CHECK(first >= 0 && count >= 1 && (first + count - 1) * kPageTokens < static_cast<int>(tokens_.size()), kInvalid,
           "pages ", first, " to ", first + count - 1, " reach beyond the ", tokens_.size(), " tokens of the timeline");
}

// Swaps the pages in and computes the draft model's missing rows. The caller has the turn.
void Timeline::ready_pages() {
  state_.swap_in();
  if (step_rows_) step_rows_->compute(tokens_);
}

void Timeline::read_pages(int first, int count, std::span<std::byte> to) {
  check_pages(first, count);
  const std::lock_guard lock(turn());
  ready_pages();
  lb::read_pages(state_, first, count, to);
}

std::unique_ptr<PageRun> Timeline::share_pages(int first, int count) {
  check_pages(first, count);
  const std::lock_guard lock(turn());
  ready_pages();
  return std::make_unique<PageRun>(state_.pool(), state_.pages().subspan(first, count));
}

int Timeline::matched_prefix(std::span<const int32_t> ids, std::span<const int32_t> ends) const {
  const auto same_ids = std::mismatch(tokens_.begin(), tokens_.end(), ids.begin(), ids.end());
  if (engine_->rows_are_invariant()) return std::min(static_cast<int>(same_ids.first - tokens_.begin()), n_text_);
  const auto same_ends = std::mismatch(append_ends_.begin(), append_ends_.end(), ends.begin(), ends.end());
  const auto n_ids = static_cast<int32_t>(same_ids.first - tokens_.begin());
  const auto past = std::upper_bound(append_ends_.begin(), same_ends.first, n_ids);
  return past == append_ends_.begin() ? 0 : *(past - 1);
}

size_t Timeline::window_bytes() const { return state_.n_window_pages(state_.n_tokens()) * window_page_bytes(state_); }

void Timeline::read_windows(std::span<std::byte> to) {
  check_committed("read the windows");
  const std::lock_guard lock(turn());
  ready_pages();
  lb::read_windows(state_, state_.n_tokens(), to);
}

std::unique_ptr<PageRun> Timeline::share_windows() {
  check_committed("share the windows");
  const std::lock_guard lock(turn());
  ready_pages();
  if (!state_.window_pool()) return nullptr;
  return std::make_unique<PageRun>(state_.window_pool(), state_.window_pages(state_.n_tokens()));
}

std::shared_ptr<Memory> Timeline::read_recurrent() {
  check_committed("read the recurrent state");
  const std::lock_guard lock(turn());
  std::shared_ptr<Memory> copy = engine_->state_copies().take(state_.stream_of(0), recurrent_bytes());
  lb::read_recurrent(state_, {copy->data(), copy->size()});
  return copy;
}

int Timeline::own_floor() const {
  return any_folds(state_.layers()) ? static_cast<int>(tokens_.size()) : rewind_floor();
}

bool Timeline::is_own_prefix(int n_tokens, const Pieces& pieces) const {
  const auto* windows = std::get_if<std::span<const std::byte>>(&pieces.windows);
  return pieces.pages.empty() && windows != nullptr && windows->empty() && pieces.recurrent.empty() &&
         n_tokens >= own_floor() && n_tokens <= static_cast<int>(tokens_.size());
}

void Timeline::check_pieces(int n_tokens, int n_pages, int n_matched, const Pieces& pieces) const {
  const int first = pieces.first_page;
  LB_CHECK(first >= 0 && first <= n_pages && std::min(first * kPageTokens, n_tokens) <= n_matched, kInvalid,
           "the timeline holds ", n_matched, " of these tokens, so pages from page ", first, " on would leave a gap");
  const size_t page = page_bytes(), window_page = window_page_bytes(state_);
  size_t bytes = 0;
  for (const PagePiece& piece : pieces.pages) bytes += checked_bytes(piece, state_.pool().get(), page);
  const size_t windows = checked_bytes(pieces.windows, state_.window_pool().get(), window_page);
  const bool is_own = is_own_prefix(n_tokens, pieces);
  const int n_windows = state_.n_window_pages(n_tokens);
  LB_CHECK(bytes == (n_pages - first) * page && (is_own || windows == n_windows * window_page) &&
               (is_own || pieces.recurrent.size() == recurrent_bytes()),
           kInvalid, n_tokens, " tokens need ", n_pages - first, " pages of ", page, " bytes from page ", first,
           " on, ", n_windows, " pages of windows of ", window_page, " bytes and ", recurrent_bytes(),
           " bytes of recurrent state; got ", bytes, ", ", windows, " and ", pieces.recurrent.size());
}

// Throws kMemory before changing anything.
void Timeline::take_pieces(int n_pages, const Pieces& pieces) {
  const auto pages_in = [&](std::span<const std::byte> bytes) {
    return bytes.empty() ? 0 : bytes.size() / page_bytes();
  };
  std::vector<int32_t> pages;
  for (const PagePiece& piece : pieces.pages) {
    if (const auto* run = std::get_if<const PageRun*>(&piece)) {
      std::ranges::copy((*run)->pages(), std::back_inserter(pages));
    } else {
      const auto bytes = std::get<std::span<const std::byte>>(piece);
      pages.insert(pages.end(), pages_in(bytes), SequenceState::kOwnPage);
    }
  }
  pages.resize(n_pages - pieces.first_page, SequenceState::kOwnPage);  // pages have no bytes if all layers have windows
  const auto* const windows = std::get_if<const PageRun*>(&pieces.windows);
  state_.set_pages(pieces.first_page, pages, windows ? (*windows)->pages() : std::span<const int32_t>{});
  int page = pieces.first_page;
  for (const PagePiece& piece : pieces.pages) {
    if (const auto* run = std::get_if<const PageRun*>(&piece)) {
      page += static_cast<int>((*run)->pages().size());
    } else if (const auto bytes = std::get<std::span<const std::byte>>(piece); !bytes.empty()) {
      const int count = static_cast<int>(pages_in(bytes));
      write_pages(state_, page, count, bytes);
      page += count;
    }
  }
}

void Timeline::assemble(std::span<const int32_t> ids, std::span<const int32_t> ends, const Pieces& pieces) {
  const int n = static_cast<int>(ids.size()), n_pages = lb::n_pages(n);
  engine_->check_ids(ids);
  LB_CHECK(!ends.empty() && ends.front() > 0 && ends.back() == n &&
               std::ranges::adjacent_find(ends, std::ranges::greater_equal()) == ends.end(),
           kInvalid, "ends must ascend, and the last one must be ", n, ", the number of tokens");
  const std::lock_guard lock(turn());
  check_pieces(n, n_pages, matched_prefix(ids, ends), pieces);
  if (is_own_prefix(n, pieces)) {
    state_.rewind(n);
  } else {
    take_pieces(n_pages, pieces);
    if (const auto* bytes = std::get_if<std::span<const std::byte>>(&pieces.windows)) write_windows(state_, n, *bytes);
    write_recurrent(state_, pieces.recurrent);
    state_.restore_length(n);
  }
  truncate_tokens(0);
  place_images(ids);
  tokens_.assign(ids.begin(), ids.end());
  append_ends_.assign(ends.begin(), ends.end());
  n_text_ = n;
  forget_append();
  n_unchanged_ = 0;
  ++revision_;
}

std::vector<std::byte> Timeline::save() {
  LB_CHECK(!has_images(), kUnsupported, "a session whose prompt has images cannot be saved");
  const std::lock_guard lock(turn());
  state_.swap_in();
  return save_snapshot(state_, tokens_, engine_->fingerprint());
}

void Timeline::load(std::span<const std::byte> bytes, const std::string& where) {
  const std::lock_guard lock(turn());
  tokens_ = load_snapshot(bytes, state_, engine_->model().info().vocab, engine_->fingerprint(), where);
  append_ends_.clear();
  n_text_ = 0;  // the snapshot does not tell positions
  images_.clear();
  forget_append();
  n_unchanged_ = 0;
  ++revision_;
}

}  // namespace lb
