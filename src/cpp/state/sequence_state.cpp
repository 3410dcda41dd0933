// Implements the append / commit / rewind protocol. docs/numerics.md shows why late folding is exact.
#include "state/sequence_state.h"

#include <algorithm>
#include <array>
#include <iterator>

#include "base/error.h"

namespace lb {
namespace {

std::shared_ptr<PagePool> own_pool(std::span<const LayerShape> layers, KvRows rows, const StateOptions& options,
                                   int pages, Stream& stream) {
  return std::make_shared<PagePool>(pages, std::vector<std::shared_ptr<const PageMemory>>{
                                               std::make_shared<PageMemory>(layers, rows, options, pages, stream)});
}

KvPools own_pools(std::span<const LayerShape> layers, const StateOptions& options, Stream& stream) {
  const int pages = n_pages(options.capacity);
  KvPools pools{own_pool(layers, KvRows::kAll, options, pages, stream), nullptr};
  if (const Window window(layers); window.exists())
    pools.windows = own_pool(layers, KvRows::kWindow, options, window.pool_pages(options, 1, 1, pages), stream);
  return pools;
}

}  // namespace

SequenceState::SequenceState(std::vector<LayerShape> layers, const StateOptions& options, Stream& stream)
    : SequenceState(options, std::array{Part{&stream, {}, layers}}, own_pools(layers, options, stream)) {}

SequenceState::SequenceState(const StateOptions& options, std::span<const Part> parts, const KvPools& pools)
    : options_(options),
      has_folding_(any_folds(parts.front().layers)),
      table_(options, has_folding_, Window(parts.front().layers), pools) {
  for (int i = 0; i < static_cast<int>(parts.size()); ++i)
    shards_.push_back(std::make_unique<ShardState>(parts[i].layers, options, *parts[i].stream, pools.all->memory(i),
                                                   pools.windows ? &pools.windows->memory(i) : nullptr,
                                                   parts[i].range));
  upload_page_tables();
}

template <class Visit>
void SequenceState::for_lists(Visit&& visit) const {
  for (const PageList* list : {&table_.all(), &table_.windows()})
    if (list->pool()) visit(*list);
}

std::vector<SequenceState::ShardParts> SequenceState::snapshot_parts(int layer, int n_tokens) const {
  std::vector<ShardParts> all;
  for (int i = 0; i < static_cast<int>(shards_.size()); ++i)
    if (shards_[i]->range().has(layer)) all.push_back({i, shards_[i]->snapshot_parts(layer, n_tokens, table_)});
  return all;
}

std::vector<uint64_t> SequenceState::part_bytes(int layer, int n_tokens) const {
  std::vector<uint64_t> sizes;
  for (const auto& shard : shards_)
    if (shard->range().has(layer)) std::ranges::copy(shard->part_bytes(layer, n_tokens), std::back_inserter(sizes));
  return sizes;
}

void SequenceState::upload_page_tables() {
  for (const KvRows rows : {KvRows::kAll, KvRows::kWindow})
    for (const auto& shard : shards_) shard->upload_entries(rows, 0, table_.list(rows).entries());
}

// Uploads the entries that differ from the devices' tables.
void SequenceState::upload_entries(int first_page) {
  for (const KvRows rows : {KvRows::kAll, KvRows::kWindow}) {
    const auto [first, end] = table_.update_entries(rows, first_page);
    if (first == end) continue;
    const auto entries = table_.list(rows).entries().subspan(first, end - first);
    for (const auto& shard : shards_) shard->upload_entries(rows, first, entries);
  }
}

void SequenceState::upload_numbers() {
  for (const auto& shard : shards_) shard->upload_numbers(table_.numbers());
}

bool SequenceState::reserve(int n_tokens) {
  LB_ASSERT(!table_.is_appending() && n_tokens <= options_.capacity);
  return take_pages(std::max(n_tokens, table_.n_tokens()), 0);
}

void SequenceState::reach_ahead() {
  launch_may_run_ = true;
  take_pages(table_.n_tokens() + 1, kLaunchTokens + kPageTokens);
}

void SequenceState::take_rows(int rows) {
  LB_CHECK(take_pages(n_tokens() + rows, 0), kMemory, "the KV cache of ", pool()->n_pages() * kPageTokens,
           " tokens is full: ", rows, " more after ", n_tokens(), " do not fit beside those of other sequences",
           PagePool::kMakeRoom);
}

bool SequenceState::take_pages(int n_tokens, int rows_ahead) {
  if (is_swapped_out() && pool()->n_free() < n_pages(n_tokens)) return false;
  if (!try_swap_in()) return false;
  const std::optional<PageTable::Growth> growth = table_.take(n_tokens, rows_ahead);
  if (!growth) return false;
  if (growth->is_empty()) return true;
  // A running launch may write rows below n_tokens() + kLaunchTokens. If the pool was too short for these rows before,
  // that launch must end first, so that the next launch reads the new entries.
  if (launch_may_run_ && growth->first_changed() * kPageTokens < table_.n_tokens() + kLaunchTokens)
    for (const auto& shard : shards_) shard->stream().wait();
  const auto copy_shared = [](const PageList& list, const PageList::Growth& own) {
    const int page = own.first_changed;
    if (own.must_copy) list.pool()->copy(list.pages(page, page + 1)[0], own.fresh.front());
  };
  copy_shared(table_.all(), growth->all);
  copy_shared(table_.windows(), growth->windows);
  table_.grow(*growth);
  upload_entries(growth->first_changed());
  return true;
}

void SequenceState::drop_pages() {
  table_.drop_pages();
  swapped_.reset();
}

std::span<const int32_t> SequenceState::window_pages(int n_tokens) const {
  const auto [first, end] = table_.window_range(n_tokens);
  return window_pool() ? table_.windows().pages(first, end) : std::span<const int32_t>{};
}

int SequenceState::n_window_pages(int n_tokens) const {
  const auto [first, end] = table_.window_range(n_tokens);
  return window_pool() ? end - first : 0;
}

void SequenceState::set_pages(int first_page, std::span<const int32_t> pages, std::span<const int32_t> windows) {
  if (first_page > 0) swap_in();
  table_.set_pages(first_page, pages, windows);
  swapped_.reset();
  upload_entries(0);
}

void SequenceState::fork(SequenceState& from) {
  from.swap_in();
  table_.share(from.table_);
  swapped_.reset();
  for (size_t i = 0; i < shards_.size(); ++i) shards_[i]->copy_from(*from.shards_[i]);  // including the page table
}

void SequenceState::swap_out() {
  LB_ASSERT(!table_.is_appending() && !table_.is_appended() && !is_swapped_out());
  if (const int n = n_pages(n_tokens()); n > 0) {
    table_.give_back(n);
    size_t bytes = 0;
    for_lists([&](const PageList& list) { bytes += list.pages().size() * list.pool()->page_bytes(); });
    swapped_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
    std::byte* to = swapped_.get();
    for_lists([&](const PageList& list) {
      const size_t size = list.pages().size() * list.pool()->page_bytes();
      list.pool()->read(list.pages(), {to, size});
      to += size;
    });
  }
  table_.lend_pages();
}

void SequenceState::swap_in() {
  LB_CHECK(try_swap_in(), kMemory, "the KV cache has ", pool()->n_free(), " free pages of ", kPageTokens,
           " tokens; a sequence that is swapped out needs ", n_pages(n_tokens()), PagePool::kMakeRoom);
}

// Also true if the state is not swapped out.
bool SequenceState::try_swap_in() {
  if (!is_swapped_out()) return true;
  if (!table_.take_back()) return false;
  const std::byte* from = swapped_.get();
  for_lists([&](const PageList& list) {
    const size_t size = list.pages().size() * list.pool()->page_bytes();
    list.pool()->write(list.pages(), {from, size});
    from += size;
  });
  swapped_.reset();
  upload_entries(0);
  return true;
}

void SequenceState::begin_append(int rows, bool is_tree) {
  if (rows > 1) launch_may_run_ = false;  // one that still runs makes no further step
  begin(rows, is_tree);
  upload_numbers();
}

const AppendNumbers& SequenceState::begin_append_at(std::span<AppendNumbers* const> at, int rows) {
  launch_may_run_ = false;  // one that still runs makes no further step
  begin(rows, false);
  for (size_t i = 0; i < shards_.size(); ++i) shards_[i]->read_numbers_at(at[i]);
  return table_.numbers();
}

void SequenceState::begin_next() { begin(1, false); }

void SequenceState::begin_plan() { begin(1, false, false); }

void SequenceState::begin_draft(int rows) {
  LB_ASSERT(!table_.is_appending() && !table_.is_appended());
  take_rows(std::min(rows, options_.capacity - n_tokens()));  // the draft model checks the capacity
  table_.set_past();
  upload_numbers();
}

void SequenceState::begin(int rows, bool is_tree, bool takes_pages) {
  begin_in_table(rows, is_tree, takes_pages);
  for (const auto& shard : shards_) shard->begin_append(rows, table_.is_by_row());
}

void SequenceState::begin_in_table(int rows, bool is_tree, bool takes_pages) {
  table_.check_rows(rows);
  if (takes_pages) take_rows(rows);
  // Each kind of append folds pending rows of its own kind only.
  if (table_.has_to_fold() && table_.pending_is_by_row() != table_.is_by_row(rows, is_tree)) fold();
  table_.begin_append(rows, is_tree);
}

SequenceState::StagedAppend SequenceState::begin_staged(int rows) {
  launch_may_run_ = false;  // one that still runs makes no further step
  begin_in_table(rows, false, true);
  const StagedAppend append{table_.numbers(), rows};
  table_.end_append();
  table_.commit_chain(rows);
  table_.begin_staged(rows);
  return append;
}

void SequenceState::begin_on(int shard, const StagedAppend& append) {
  shards_[shard]->begin_append(append.rows, table_.is_by_row(append.rows, false));
  shards_[shard]->upload_numbers(append.numbers);
}

void SequenceState::end_append() {
  table_.end_append();
  for (const auto& shard : shards_) shard->read_numbers_at(nullptr);
}

void SequenceState::commit(std::span<const int32_t> path, int n_to_move) {
  LB_ASSERT(table_.is_appended() && path.size() <= static_cast<size_t>(table_.n_rows()));
  const int n = static_cast<int>(path.size());
  if (!table_.is_tree()) {
    for (int i = 0; i < n; ++i)
      LB_CHECK(path[i] == i, kInvalid, "only a prefix of a chain can be kept; entry ", i, " of the path is ", path[i]);
    return commit_chain(n);
  }
  if (table_.accept(path)) {
    upload_numbers();
    for (const auto& shard : shards_) shard->send_moves(0, n_to_move, shard->n_past());
  }
  table_.end_commit();
}

void SequenceState::rewind(int n_tokens) {
  LB_ASSERT(!table_.is_appending());
  const bool is_possible = n_tokens >= rewind_floor() || (n_tokens == 0 && !has_folding_);
  LB_CHECK(is_possible && n_tokens <= this->n_tokens(), kInvalid, "rewind to ", n_tokens, " tokens: possible from ",
           rewind_floor(), " to ", this->n_tokens());
  n_tokens == 0 ? drop_pages() : swap_in();
  table_.rewind(n_tokens);
  table_.give_back(n_pages(n_tokens));
}

void SequenceState::abort_append() {
  table_.abort_append();
  for (const auto& shard : shards_) shard->read_numbers_at(nullptr);
  if (has_folding_) reset();
}

void SequenceState::reset() {
  table_.set_length(0);
  drop_pages();
  for (const auto& shard : shards_) shard->zero();
}

void SequenceState::fold() {
  LB_ASSERT(!table_.is_appending());
  if (!table_.has_to_fold()) return;
  upload_numbers();
  for (const auto& shard : shards_) shard->fold(table_.pending_is_by_row());
  table_.set_folded();
}

}  // namespace lb
