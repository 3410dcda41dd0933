// The append / commit / rewind protocol. docs/numerics.md shows why folding late is exact.
#include "state/sequence_state.h"

#include <algorithm>

#include "ops/previous_row.h"

namespace lb {
namespace {

constexpr std::array<int32_t, kMaxTree> kIdentity = [] {
  std::array<int32_t, kMaxTree> path{};
  for (int i = 0; i < kMaxTree; ++i) path[i] = i;
  return path;
}();

int n_pages(int capacity) { return (capacity + kPageTokens - 1) / kPageTokens; }

size_t page_bytes(const KvShape& shape, KvType type) { return shape.n_kv_heads * kv_head_bytes(type, shape.head_dim); }

bool any_folds(std::span<const LayerShape> shapes) { return std::ranges::any_of(shapes, folds); }

// Pages that `window` rows can touch.
int window_pages(const KvShape& shape) { return n_pages(shape.window) + 1; }

}  // namespace

// Behind the shortest length that rewind() reaches come kMaxTree rows that are committed and not folded, then kMaxTree
// rows of a draft or of an append. No two rows of a longer append may share a slot.
int ring_pages(const KvShape& shape, const StateOptions& options, bool folds) {
  if (shape.window == 0 || !folds) return 0;
  return n_pages(std::min(options.capacity, std::max(shape.window + 2 * kMaxTree, options.append_rows)));
}

size_t page_bytes(const KvShape& shape, const StateOptions& options) {
  return page_bytes(shape, options.k_type) + page_bytes(shape, options.v_type);
}

size_t pending_bytes(const LayerShape& shape) {
  size_t values = 0;  // of one row
  if (const auto* row = std::get_if<RowShape>(&shape)) values = row->dim;
  if (const auto* r = std::get_if<RecurrentShape>(&shape))
    values = r->channels() + size_t{2} * r->n_k_heads * r->dk + size_t{2} * r->n_v_heads + size_t(r->n_v_heads) * r->dv;
  return sizeof(float) * kMaxTree * values;
}

SequenceState::LayerMemory SequenceState::carve_layer(const LayerShape& shape, const StateOptions& options, bool folds,
                                                      int32_t* page_table, Carver& carver) {
  const int pages = n_pages(options.capacity);
  if (const auto* kv = std::get_if<KvShape>(&shape)) {
    const int ring = ring_pages(*kv, options, folds);
    const size_t kept = ring > 0 ? ring : pages;
    std::byte* k = carver.take<std::byte>(kept * page_bytes(*kv, options.k_type));
    std::byte* v = carver.take<std::byte>(kept * page_bytes(*kv, options.v_type));
    return KvPages{k, v, ring > 0 ? carver.take<int32_t>(pages) : page_table, ring};
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

SequenceState::SequenceState(std::vector<LayerShape> layers, const StateOptions& options, Stream& stream)
    : shapes_(std::move(layers)),
      options_(options),
      stream_(stream),
      has_folding_(any_folds(shapes_)),
      memory_(stream.reserve(planned_bytes(shapes_, options))) {
  moves_.reserve(shapes_.size());
  Carver carver(*memory_);
  layout_ = carve(shapes_, options_, carver);
  numbers_at_ = layout_.numbers;
  upload_page_tables();
  numbers_ = {.n_past = 0, .key_buffer = 0, .n_accepted = 0, .n_chunk = kMaxTree, .accepted = {}, .chunk = {}};
  std::ranges::copy(kIdentity, numbers_.chunk);
}

void SequenceState::upload_page_tables() const {
  upload_pages(layout_.page_table, 0);
  for (const LayerMemory& layer : layout_.layers)
    if (const auto* pages = std::get_if<KvPages>(&layer); pages != nullptr && pages->ring > 0)
      upload_pages(pages->page_table, pages->ring);
}

void SequenceState::upload_pages(int32_t* page_table, int ring) const {
  std::vector<int32_t> pages(n_pages(options_.capacity));
  for (int i = 0; i < static_cast<int>(pages.size()); ++i) pages[i] = ring > 0 ? i % ring : i;
  stream_.upload(page_table, pages.data(), pages.size() * sizeof(int32_t));
}

int SequenceState::rewind_floor() const { return has_folding_ ? n_folded_ : 0; }

void SequenceState::begin_append(int rows, const Tree& tree) {
  begin(rows, tree);
  publish();
}

const AppendNumbers& SequenceState::begin_append_at(AppendNumbers* at, int rows) {
  begin(rows, {});
  numbers_at_ = at;
  return numbers_;
}

void SequenceState::begin_next() { begin(1, {}); }

void SequenceState::begin_draft() {
  LB_ASSERT(!appending_ && !appended_);
  numbers_.n_past = n_tokens_;
  publish();
}

void SequenceState::begin(int rows, const Tree& tree) {
  LB_ASSERT(!appending_ && rows > 0);
  is_tree_ = tree.parent != nullptr;
  LB_ASSERT(!is_tree_ || rows <= kMaxTree);
  LB_CHECK(rows <= options_.capacity - n_tokens_, kInvalid, "the context holds ", options_.capacity, " tokens; ",
           n_tokens_, " are used and ", rows, " more do not fit. Load the model with a larger context");
  LB_ASSERT(rows <= std::max(options_.append_rows, kMaxTree));
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
  appended_ = false;
  n_tokens_ = n_tokens;
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

bool SequenceState::keeps_all_rows(int layer) const {
  const auto* pages = std::get_if<KvPages>(&layout_.layers[layer]);
  return pages != nullptr && pages->ring == 0;
}

std::vector<std::span<std::byte>> SequenceState::snapshot_parts(int layer, int n_tokens) const {
  std::vector<std::span<std::byte>> parts;
  const auto bytes = [](auto* p, size_t count) { return std::as_writable_bytes(std::span(p, count)); };
  if (const auto* shape = std::get_if<KvShape>(&shapes_[layer])) {
    const auto& pages = std::get<KvPages>(layout_.layers[layer]);
    const size_t k = page_bytes(*shape, options_.k_type), v = page_bytes(*shape, options_.v_type);
    const int n = n_pages(n_tokens);  // whole pages: rows beyond n_tokens are never read
    if (pages.ring == 0) return {bytes(pages.k, n * k), bytes(pages.v, n * v)};
    for (int page = std::max(n - window_pages(*shape), 0); page < n; ++page) {
      const size_t at = page % pages.ring;
      parts.push_back(bytes(pages.k + at * k, k));
      parts.push_back(bytes(pages.v + at * v, v));
    }
  } else if (const auto* row = std::get_if<RowShape>(&shapes_[layer])) {
    parts.push_back(bytes(std::get<RowLayer>(layout_.layers[layer]).history, row->dim));
  } else {
    const auto& r = std::get<RecurrentShape>(shapes_[layer]);
    const auto& memory = std::get<RecurrentLayer>(layout_.layers[layer]);
    parts.push_back(bytes(memory.S, static_cast<size_t>(r.n_v_heads) * r.dk * r.dv));
    parts.push_back(bytes(memory.history, static_cast<size_t>(r.n_taps - 1) * r.channels()));
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
