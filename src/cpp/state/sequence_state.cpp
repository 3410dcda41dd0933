// The append / commit / rewind protocol. docs/numerics.md shows why folding late is exact.
#include "state/sequence_state.h"

#include <algorithm>
#include <iterator>

#include "ops/previous_row.h"

namespace lb {
namespace {

constexpr std::array<int32_t, kMaxTree> kIdentity = [] {
  std::array<int32_t, kMaxTree> path{};
  for (int i = 0; i < kMaxTree; ++i) path[i] = i;
  return path;
}();

constexpr const char* kMakeRoom = ". Reset or swap out other sessions, or load the model with more kv_tokens";

// Pages that `window` rows can touch.
int window_pages(const KvShape& shape) { return n_pages(shape.window) + 1; }

}  // namespace

SequenceState::LayerMemory SequenceState::carve_layer(const LayerShape& shape, const StateOptions& options, bool folds,
                                                      int32_t* page_table, Carver& carver) {
  if (const auto* kv = std::get_if<KvShape>(&shape)) {
    const int ring = ring_pages(*kv, options, folds);
    if (ring == 0) return KvPages{nullptr, nullptr, page_table, 0};  // in the pool
    std::byte* k = carver.take<std::byte>(ring * page_bytes(*kv, options.k_type));
    std::byte* v = carver.take<std::byte>(ring * page_bytes(*kv, options.v_type));
    return KvPages{k, v, carver.take<int32_t>(n_pages(options.capacity)), ring};
  }
  if (const auto* row = std::get_if<RowShape>(&shape)) {
    float* history = carver.take<float>(row->dim);
    return RowLayer{history, carver.take<float>(static_cast<size_t>(kMaxTree) * row->dim)};
  }
  const auto& r = std::get<RecurrentShape>(shape);
  const size_t keys = static_cast<size_t>(kMaxTree) * r.n_k_heads * r.dk;
  RecurrentLayer layer;
  layer.S = carver.take<float>(static_cast<size_t>(r.n_v_heads) * r.dk * r.dv);
  layer.history = carver.take<float>(static_cast<size_t>(r.n_taps - 1) * r.channels());
  layer.conv_pending = carver.take<float>(static_cast<size_t>(kMaxTree) * r.channels());
  layer.k_pending[0] = carver.take<float>(keys);
  layer.k_pending[1] = carver.take<float>(keys);
  for (float*& cs : layer.cs_pending) cs = carver.take<float>(static_cast<size_t>(kMaxTree) * r.n_v_heads);
  layer.delta_pending = carver.take<float>(static_cast<size_t>(kMaxTree) * r.n_v_heads * r.dv);
  return layer;
}

SequenceState::Layout SequenceState::carve(std::span<const LayerShape> shapes, const StateOptions& options,
                                           Carver& carver) {
  Layout layout;
  layout.numbers = carver.take<AppendNumbers>(1);
  layout.page_table = carver.take<int32_t>(n_pages(options.capacity));
  for (const LayerShape& shape : shapes)
    layout.layers.push_back(carve_layer(shape, options, any_folds(shapes), layout.page_table, carver));
  return layout;
}

size_t SequenceState::layer_bytes(std::span<const LayerShape> layers, int layer, const StateOptions& options) {
  Carver counter;
  carve_layer(layers[layer], options, any_folds(layers), nullptr, counter);
  return counter.used();
}

size_t SequenceState::planned_bytes(std::span<const LayerShape> layers, const StateOptions& options) {
  Carver counter;
  carve(layers, options, counter);
  return counter.used();
}

SequenceState::SequenceState(std::vector<LayerShape> layers, const StateOptions& options, Stream& stream,
                             std::shared_ptr<PagePool> pool)
    : shapes_(std::move(layers)),
      options_(options),
      stream_(stream),
      has_folding_(any_folds(shapes_)),
      pool_(pool ? std::move(pool)
                 : std::make_shared<PagePool>(shapes_, options, lb::n_pages(options.capacity), stream)),
      memory_(stream.reserve(planned_bytes(shapes_, options))),
      table_(lb::n_pages(options.capacity)) {
  moves_.reserve(shapes_.size());
  pages_.reserve(table_.size());
  Carver carver(*memory_);
  layout_ = carve(shapes_, options_, carver);
  numbers_at_ = layout_.numbers;
  for (size_t i = 0; i < shapes_.size(); ++i)
    if (auto* pages = std::get_if<KvPages>(&layout_.layers[i]); pages != nullptr && pages->ring == 0) {
      pages->k = pool_->layer(static_cast<int>(i)).k;
      pages->v = pool_->layer(static_cast<int>(i)).v;
    }
  upload_page_tables();
  numbers_ = {.n_past = 0, .key_buffer = 0, .n_accepted = 0, .n_chunk = kMaxTree, .accepted = {}, .chunk = {}};
  std::ranges::copy(kIdentity, numbers_.chunk);
}

void SequenceState::upload_page_tables() {
  stream_.upload(layout_.page_table, table_.data(), table_.size() * sizeof(int32_t));
  for (const LayerMemory& layer : layout_.layers)
    if (const auto* pages = std::get_if<KvPages>(&layer); pages != nullptr && pages->ring > 0) upload_ring(*pages);
}

SequenceState::~SequenceState() { give_back(0); }

void SequenceState::upload_ring(const KvPages& ring) {
  std::vector<int32_t> pages(table_.size());
  for (int i = 0; i < static_cast<int>(pages.size()); ++i) pages[i] = i % ring.ring;
  stream_.upload(ring.page_table, pages.data(), pages.size() * sizeof(int32_t));
}

// Uploads what differs from the device's table. Entries behind the pages stay: a kernel may look them up, and reads or
// writes no row there.
void SequenceState::upload_table(int first_page) {
  const auto end = static_cast<int>(pages_.size());
  int first = first_page, last = end;
  while (first < end && table_[first] == pages_[first]) ++first;
  while (last > first && table_[last - 1] == pages_[last - 1]) --last;
  if (first == last) return;
  std::copy(pages_.begin() + first, pages_.begin() + last, table_.begin() + first);
  stream_.upload(layout_.page_table + first, table_.data() + first, (last - first) * sizeof(int32_t));
}

int SequenceState::room() const {
  const int last = n_tokens_ / kPageTokens;  // page that the next row is in
  const bool must_copy = last < static_cast<int>(pages_.size()) && pool_->is_shared(pages_[last]);
  const int64_t rows = (int64_t{pool_->n_free()} + std::ssize(pages_) - (must_copy ? 1 : 0)) * kPageTokens;
  return static_cast<int>(std::clamp<int64_t>(rows - n_tokens_, 0, options_.capacity - n_tokens_));
}

bool SequenceState::reserve(int n_tokens) {
  LB_ASSERT(!appending_ && n_tokens <= options_.capacity);
  return take_pages(std::max(n_tokens, n_tokens_), 0);
}

void SequenceState::reach_ahead() {
  launch_may_run_ = true;
  take_pages(n_tokens_ + 1, kLaunchTokens + kPageTokens);
}

void SequenceState::take_rows(int rows) {
  LB_CHECK(take_pages(n_tokens_ + rows, 0), kMemory, "the KV cache of ", pool_->n_pages() * kPageTokens,
           " tokens is full: ", rows, " more after ", n_tokens_, " do not fit beside those of other sequences",
           kMakeRoom);
}

// Takes pages for n_tokens tokens, and for the rows ahead of them where the pool has enough. Rows behind the committed
// ones are written, so their pages must be this state's alone: only the last page with rows can be shared.
bool SequenceState::take_pages(int n_tokens, int rows_ahead) {
  if (is_swapped_out() && pool_->n_free() < lb::n_pages(n_tokens)) return false;
  if (!try_swap_in()) return false;
  const int first = n_tokens_ / kPageTokens, n_owned = static_cast<int>(pages_.size());
  const bool must_copy = n_tokens > n_tokens_ && first < n_owned && pool_->is_shared(pages_[first]);
  std::vector<int32_t> fresh;
  const int needed = std::max(lb::n_pages(n_tokens) - n_owned, 0);
  if (!pool_->take(needed + (must_copy ? 1 : 0), fresh)) return false;
  const int with_ahead = lb::n_pages(std::min(n_tokens + rows_ahead, options_.capacity));
  for (int n = n_owned + needed; n < with_ahead && pool_->take(1, fresh); ++n) {
  }
  if (fresh.empty()) return true;
  // A launch that runs may reach rows below n_tokens_ + kLaunchTokens. Where the pool was short before, it must end
  // first, so that the next one reads the new entries.
  const int first_changed = must_copy ? first : n_owned;
  if (launch_may_run_ && first_changed * kPageTokens < n_tokens_ + kLaunchTokens) stream_.wait();
  if (must_copy) {
    pool_->copy(pages_[first], fresh.front());
    pool_->release({&pages_[first], 1});
    pages_[first] = fresh.front();
    fresh.erase(fresh.begin());
  }
  pages_.insert(pages_.end(), fresh.begin(), fresh.end());
  upload_table(first_changed);
  return true;
}

void SequenceState::give_back(int first_page) {
  if (first_page >= static_cast<int>(pages_.size())) return;
  pool_->release(std::span(pages_).subspan(first_page));
  pages_.resize(first_page);
}

void SequenceState::drop_pages() {
  give_back(0);
  swapped_.reset();
}

void SequenceState::set_pages(int first_page, std::span<const int32_t> pages) {
  if (first_page > 0) swap_in();
  LB_ASSERT(!appending_ && first_page <= static_cast<int>(pages_.size()) && first_page + pages.size() <= table_.size());
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
  swapped_.reset();
  std::vector<int32_t> shared;
  std::ranges::copy_if(pages, std::back_inserter(shared), [](int32_t page) { return page != kOwnPage; });
  pool_->share(shared);
  pool_->release(given_back);
  for (auto page = fresh.begin(); int32_t& entry : next)
    if (entry == kOwnPage) entry = *page++;
  pages_.resize(first_page);
  pages_.insert(pages_.end(), next.begin(), next.end());
  upload_table(first_page);
}

void SequenceState::fork(SequenceState& from) {
  from.swap_in();
  LB_ASSERT(pool_ == from.pool_ && !from.appending_ && !from.appended_);
  LB_ASSERT(memory_->size() == from.memory_->size());
  const auto shared = std::span(from.pages_).first(lb::n_pages(from.n_tokens_));
  pool_->share(shared);
  drop_pages();
  pages_.assign(shared.begin(), shared.end());
  stream_.copy(memory_->data(), from.memory_->data(), memory_->size());  // with the page table
  table_ = from.table_;
  appending_ = appended_ = false;
  n_tokens_ = from.n_tokens_;
  n_folded_ = from.n_folded_;
  numbers_ = from.numbers_;
}

void SequenceState::swap_out() {
  LB_ASSERT(!appending_ && !appended_ && !is_swapped_out());
  if (const int n = lb::n_pages(n_tokens_); n > 0) {
    const size_t bytes = n * pool_->page_bytes();
    swapped_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
    pool_->read(std::span(pages_).first(n), {swapped_.get(), bytes});
  }
  give_back(0);
}

void SequenceState::swap_in() {
  LB_CHECK(try_swap_in(), kMemory, "the KV cache has ", pool_->n_free(), " free pages of ", kPageTokens,
           " tokens; a sequence that is swapped out needs ", lb::n_pages(n_tokens_), kMakeRoom);
}

// True where the state is not swapped out.
bool SequenceState::try_swap_in() {
  if (!is_swapped_out()) return true;
  const int n = lb::n_pages(n_tokens_);
  if (!pool_->take(n, pages_)) return false;
  pool_->write(pages_, {swapped_.get(), n * pool_->page_bytes()});
  swapped_.reset();
  upload_table(0);
  return true;
}

int SequenceState::rewind_floor() const { return has_folding_ ? n_folded_ : 0; }

void SequenceState::begin_append(int rows, const Tree& tree) {
  if (rows > 1) launch_may_run_ = false;  // one that still runs makes no further step
  begin(rows, tree);
  publish();
}

const AppendNumbers& SequenceState::begin_append_at(AppendNumbers* at, int rows) {
  launch_may_run_ = false;  // one that still runs makes no further step
  begin(rows, {});
  numbers_at_ = at;
  return numbers_;
}

void SequenceState::begin_next() { begin(1, {}); }

void SequenceState::begin_plan() { begin(1, {}, false); }

void SequenceState::begin_draft(int rows) {
  LB_ASSERT(!appending_ && !appended_);
  take_rows(std::min(rows, options_.capacity - n_tokens_));  // the draft model checks the capacity
  numbers_.n_past = n_tokens_;
  publish();
}

void SequenceState::begin(int rows, const Tree& tree, bool takes_pages) {
  LB_ASSERT(!appending_ && rows > 0);
  is_tree_ = tree.parent != nullptr;
  LB_ASSERT(!is_tree_ || rows <= kMaxTree);
  LB_CHECK(rows <= options_.capacity - n_tokens_, kInvalid, "the context holds ", options_.capacity, " tokens; ",
           n_tokens_, " are used and ", rows, " more do not fit. Load the model with a larger context");
  LB_ASSERT(rows <= std::max(options_.append_rows, kMaxTree));
  if (takes_pages) take_rows(rows);
  appending_ = true;
  appended_ = false;
  n_rows_ = rows;
  n_chunks_ = (rows + kMaxTree - 1) / kMaxTree;
  n_calls_ = (rows - 1) / stream_.max_chain_rows() + 1;
  numbers_.n_past = n_tokens_;
}

KvLayer SequenceState::kv(int layer) const {
  const auto& shape = std::get<KvShape>(shapes_[layer]);
  const auto& pages = std::get<KvPages>(layout_.layers[layer]);
  return {pages.k, pages.v, pages.page_table, options_.k_type, options_.v_type, shape.n_kv_heads, shape.head_dim};
}

SequenceState::Call SequenceState::recurrent(int layer, int call) const {
  LB_ASSERT(appending_ && call < n_calls_);
  const auto& memory = std::get<RecurrentLayer>(layout_.layers[layer]);
  const int max_rows = stream_.max_chain_rows(), first = call * max_rows;
  const AppendNumbers& numbers = *numbers_at_;
  const Accepted folded = call == 0 ? accepted() : Accepted{numbers.chunk, &numbers.n_chunk};
  return {first, std::min(max_rows, n_rows_ - first), folded, &numbers.key_buffer, first / kMaxTree % 2, memory};
}

void SequenceState::end_append() {
  LB_ASSERT(appending_);
  appending_ = false;
  appended_ = true;
  numbers_at_ = layout_.numbers;
  numbers_.key_buffer = (numbers_.key_buffer + n_chunks_) % 2;
  // S now holds all rows committed before and every chunk of this append but the last.
  n_folded_ = n_tokens_ + (n_chunks_ - 1) * kMaxTree;
  numbers_.n_accepted = 0;
}

void SequenceState::commit_chain(int keep) {
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

void SequenceState::send_moves(int first, int end, const int32_t* n_past) {
  moves_.clear();
  for (int layer = first; layer < end; ++layer)
    if (std::holds_alternative<KvShape>(shapes_[layer])) moves_.push_back({kv(layer), accepted(), n_past});
  stream_.run(std::span<const KvMove>(moves_));
}

void SequenceState::commit(std::span<const int32_t> path, int n_to_move) {
  LB_ASSERT(appended_ && path.size() <= static_cast<size_t>(n_rows_));
  const int n = static_cast<int>(path.size());
  if (!is_tree_) {
    for (int i = 0; i < n; ++i)
      LB_CHECK(path[i] == i, kInvalid, "only a prefix of a chain can be kept; entry ", i, " of the path is ", path[i]);
    return commit_chain(n);
  }
  for (int i = 0; i < n; ++i)
    LB_CHECK(path[i] >= i && path[i] < n_rows_ && (i == 0 || path[i] > path[i - 1]), kInvalid,
             "an accepted path must ascend from the root; entry ", i, " is ", path[i]);
  std::ranges::copy(path, numbers_.accepted);
  numbers_.n_accepted = n;
  if (!std::equal(path.begin(), path.end(), kIdentity.begin())) {
    publish();
    send_moves(0, n_to_move, n_past());
  }
  n_tokens_ += n;
  appended_ = false;
  if (!has_folding_) n_folded_ = n_tokens_;
}

void SequenceState::rewind(int n_tokens) {
  LB_ASSERT(!appending_);
  LB_CHECK(n_tokens >= rewind_floor() && n_tokens <= n_tokens_, kInvalid, "rewind to ", n_tokens,
           " tokens: possible from ", rewind_floor(), " to ", n_tokens_);
  n_tokens == 0 ? drop_pages() : swap_in();
  appended_ = false;
  n_tokens_ = n_tokens;
  give_back(lb::n_pages(n_tokens));
  if (has_folding_) {
    numbers_.n_accepted = n_tokens - n_folded_;  // a prefix of the accepted path; the rest was never folded
  } else {
    n_folded_ = n_tokens;
  }
}

void SequenceState::abort_append() {
  appending_ = appended_ = false;
  numbers_at_ = layout_.numbers;
  if (has_folding_) reset();
}

void SequenceState::reset() {
  appending_ = appended_ = false;
  n_tokens_ = n_folded_ = numbers_.n_accepted = 0;
  drop_pages();
  for (size_t i = 0; i < shapes_.size(); ++i) {
    if (const auto* row = std::get_if<RowShape>(&shapes_[i]))
      stream_.zero(std::get<RowLayer>(layout_.layers[i]).history, sizeof(float) * row->dim);
    const auto* shape = std::get_if<RecurrentShape>(&shapes_[i]);
    if (shape == nullptr) continue;
    const auto& layer = std::get<RecurrentLayer>(layout_.layers[i]);
    stream_.zero(layer.S, sizeof(float) * shape->n_v_heads * shape->dk * shape->dv);
    stream_.zero(layer.history, sizeof(float) * (shape->n_taps - 1) * shape->channels());
  }
}

void SequenceState::fold() {
  LB_ASSERT(!appending_);
  if (!has_folding_ || numbers_.n_accepted == 0) return;
  publish();
  for (size_t i = 0; i < shapes_.size(); ++i) {
    if (const auto* row = std::get_if<RowShape>(&shapes_[i])) {
      const auto& layer = std::get<RowLayer>(layout_.layers[i]);
      run(PreviousRow{.x = nullptr,
                      .history = layer.history,
                      .pending = layer.pending,
                      .y = nullptr,
                      .accepted = accepted(),
                      .tree = {},
                      .rows = 0,
                      .dim = row->dim},
          stream_);
    }
    const auto* shape = std::get_if<RecurrentShape>(&shapes_[i]);
    if (shape == nullptr) continue;
    const auto& layer = std::get<RecurrentLayer>(layout_.layers[i]);
    run(CausalConv{.x = nullptr,
                   .w = nullptr,
                   .history = layer.history,
                   .pending = layer.conv_pending,
                   .y = nullptr,
                   .accepted = accepted(),
                   .tree = {},
                   .rows = 0,
                   .channels = shape->channels(),
                   .n_taps = shape->n_taps},
        stream_);
    run(GatedDelta{.q = nullptr,
                   .k = nullptr,
                   .v = nullptr,
                   .g = nullptr,
                   .beta = nullptr,
                   .o = nullptr,
                   .S = layer.S,
                   .k_pending = {layer.k_pending[0], layer.k_pending[1]},
                   .cs_pending = {layer.cs_pending[0], layer.cs_pending[1]},
                   .delta = layer.delta_pending,
                   .buffer = &layout_.numbers->key_buffer,
                   .flip = 0,
                   .accepted = accepted(),
                   .tree = {},
                   .rows = 0,
                   .n_k_heads = shape->n_k_heads,
                   .n_v_heads = shape->n_v_heads,
                   .dk = shape->dk,
                   .dv = shape->dv,
                   .row_stride = 0,
                   .order = shape->order},
        stream_);
  }
  n_folded_ = n_tokens_;
  numbers_.n_accepted = 0;
}

namespace {

template <class T>
std::span<std::byte> bytes(T* p, size_t count) {
  return std::as_writable_bytes(std::span(p, count));
}

}  // namespace

size_t bytes_of(const SequenceState::Part& part) {
  size_t n = 0;
  for (const std::span<std::byte> piece : part) n += piece.size();
  return n;
}

// K and V of the first n pages of a layer.
std::array<SequenceState::Part, 2> SequenceState::page_parts(int layer, int n) const {
  LB_ASSERT(n <= static_cast<int>(pages_.size()));
  const PagePool::Layer& pool = pool_->layer(layer);
  std::array<Part, 2> parts;
  for (int i = 0, next; i < n; i = next) {  // consecutive pages are one piece
    for (next = i + 1; next < n && pages_[next] == pages_[next - 1] + 1; ++next) {
    }
    parts[0].push_back(bytes(pool.k + pages_[i] * pool.k_bytes, (next - i) * pool.k_bytes));
    parts[1].push_back(bytes(pool.v + pages_[i] * pool.v_bytes, (next - i) * pool.v_bytes));
  }
  return parts;
}

std::vector<SequenceState::Part> SequenceState::snapshot_parts(int layer, int n_tokens) const {
  std::vector<Part> parts;
  if (const auto* shape = std::get_if<KvShape>(&shapes_[layer])) {
    const auto& pages = std::get<KvPages>(layout_.layers[layer]);
    const int n = lb::n_pages(n_tokens);  // whole pages: rows beyond n_tokens are never read
    if (pages.ring == 0) {
      std::ranges::move(page_parts(layer, n), std::back_inserter(parts));
      return parts;
    }
    const size_t k = page_bytes(*shape, options_.k_type), v = page_bytes(*shape, options_.v_type);
    for (int page = std::max(n - window_pages(*shape), 0); page < n; ++page) {
      const size_t at = page % pages.ring;
      parts.push_back({bytes(pages.k + at * k, k)});
      parts.push_back({bytes(pages.v + at * v, v)});
    }
  } else if (const auto* row = std::get_if<RowShape>(&shapes_[layer])) {
    parts.push_back({bytes(std::get<RowLayer>(layout_.layers[layer]).history, row->dim)});
  } else {
    const auto& r = std::get<RecurrentShape>(shapes_[layer]);
    const auto& memory = std::get<RecurrentLayer>(layout_.layers[layer]);
    parts.push_back({bytes(memory.S, static_cast<size_t>(r.n_v_heads) * r.dk * r.dv)});
    parts.push_back({bytes(memory.history, static_cast<size_t>(r.n_taps - 1) * r.channels())});
  }
  return parts;
}

void SequenceState::restore_length(int n_tokens) {
  LB_ASSERT(n_tokens >= 0 && n_tokens <= options_.capacity);
  appending_ = appended_ = false;
  n_tokens_ = n_folded_ = n_tokens;
  numbers_.n_accepted = 0;
}

}  // namespace lb
