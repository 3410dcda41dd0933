// Implements a sequence's memory and ops on one shard.
#include "state/shard_state.h"

#include <algorithm>

#include "ops/previous_row.h"

namespace lb {
namespace {

template <class T>
std::span<std::byte> bytes(T* p, size_t count) {
  return std::as_writable_bytes(std::span(p, count));
}

}  // namespace

size_t bytes_of(const StatePart& part) {
  size_t n = 0;
  for (const std::span<std::byte> piece : part) n += piece.size();
  return n;
}

ShardState::LayerMemory ShardState::carve_layer(const LayerShape& shape, Carver& carver) {
  if (std::holds_alternative<KvShape>(shape)) return KvPages{};
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

ShardState::Layout ShardState::carve(std::span<const LayerShape> shapes, const StateOptions& options, LayerRange range,
                                     Carver& carver) {
  Layout layout;
  layout.numbers = carver.take<AppendNumbers>(1);
  layout.page_table = carver.take<int32_t>(n_pages(options.capacity));
  layout.windows = Window(shapes).exists() ? carver.take<int32_t>(n_pages(options.capacity)) : nullptr;
  for (int i = 0; i < static_cast<int>(shapes.size()); ++i)
    layout.layers.push_back(range.has(i) ? carve_layer(shapes[i], carver) : LayerMemory{});
  return layout;
}

size_t ShardState::layer_bytes(const LayerShape& layer) {
  Carver counter;
  carve_layer(layer, counter);
  return counter.used();
}

size_t ShardState::planned_bytes(std::span<const LayerShape> layers, const StateOptions& options, LayerRange range) {
  Carver counter;
  carve(layers, options, range, counter);
  return counter.used();
}

ShardState::ShardState(std::vector<LayerShape> layers, const StateOptions& options, Stream& stream,
                       const PageMemory& pages, const PageMemory* windows, LayerRange range)
    : shapes_(std::move(layers)),
      options_(options),
      range_(range),
      stream_(stream),
      pages_(pages),
      windows_(windows),
      memory_(stream.reserve(planned_bytes(shapes_, options, range))) {
  moves_.reserve(shapes_.size());
  Carver carver(*memory_);
  layout_ = carve(shapes_, options_, range_, carver);
  numbers_at_ = layout_.numbers;
  for (int i = 0; i < static_cast<int>(shapes_.size()); ++i)
    if (range_.has(i) && std::holds_alternative<KvShape>(shapes_[i])) {
      const PageMemory::Layer& memory = pages_of(i).layer(i);
      const bool is_window = keeps(shapes_, i, KvRows::kWindow);
      layout_.layers[i] = KvPages{memory.k, memory.v, is_window ? layout_.windows : layout_.page_table};
    }
}

void ShardState::upload_entries(KvRows rows, int first_page, std::span<const int32_t> pages) {
  if (pages.empty()) return;
  int32_t* const table = rows == KvRows::kAll ? layout_.page_table : layout_.windows;
  stream_.upload(table + first_page, pages.data(), pages.size_bytes());
}

void ShardState::upload_numbers(const AppendNumbers& numbers) {
  stream_.upload(layout_.numbers, &numbers, sizeof numbers);
}

KvLayer ShardState::kv(int layer) const {
  const auto& shape = std::get<KvShape>(shapes_[layer]);
  const auto& pages = std::get<KvPages>(layout_.layers[layer]);
  const KvStorage storage = storage_of(shape, options_);
  return {pages.k,        pages.v,          pages.page_table, storage.k_type,
          storage.v_type, shape.n_kv_heads, shape.head_dim,   shape.key_tail};
}

RecurrentCall ShardState::recurrent(int layer, int call) const {
  const auto& memory = std::get<RecurrentLayer>(layout_.layers[layer]);
  const int max_rows = stream_.max_chain_rows(), first = call * max_rows;
  const AppendNumbers& numbers = *numbers_at_;
  const Accepted folded = call == 0 ? accepted() : Accepted{numbers.chunk, &numbers.n_chunk};
  const int rows = std::min(max_rows, n_rows_ - first);
  return {first, rows, folded, &numbers.key_buffer, first / kMaxTree % 2, memory, by_row_};
}

void ShardState::send_moves(int first, int end, const int32_t* n_past) {
  moves_.clear();
  for (int layer = std::max(first, range_.first); layer < std::min(end, range_.end); ++layer)
    if (const auto* kv_shape = std::get_if<KvShape>(&shapes_[layer]); kv_shape != nullptr && kv_shape->n_kv_heads > 0)
      moves_.push_back({kv(layer), accepted(), n_past});
  stream_.run(std::span<const KvMove>(moves_));
}

void ShardState::zero() {
  for (size_t i = 0; i < shapes_.size(); ++i) {
    if (!range_.has(i)) continue;
    if (const auto* row = std::get_if<RowShape>(&shapes_[i]))
      stream_.zero(std::get<RowLayer>(layout_.layers[i]).history, sizeof(float) * row->dim);
    const auto* shape = std::get_if<RecurrentShape>(&shapes_[i]);
    if (shape == nullptr) continue;
    const auto& layer = std::get<RecurrentLayer>(layout_.layers[i]);
    stream_.zero(layer.S, sizeof(float) * shape->n_v_heads * shape->dk * shape->dv);
    stream_.zero(layer.history, sizeof(float) * (shape->n_taps - 1) * shape->channels());
  }
}

void ShardState::copy_from(const ShardState& from) {
  LB_ASSERT(memory_->size() == from.memory_->size());
  stream_.copy(memory_->data(), from.memory_->data(), memory_->size());
}

void ShardState::fold(bool by_row) {
  for (size_t i = 0; i < shapes_.size(); ++i) {
    if (!range_.has(i)) continue;
    if (const auto* row = std::get_if<RowShape>(&shapes_[i])) fold_rows(*row, std::get<RowLayer>(layout_.layers[i]));
    if (const auto* shape = std::get_if<RecurrentShape>(&shapes_[i]))
      fold_delta(*shape, std::get<RecurrentLayer>(layout_.layers[i]), by_row);
  }
}

void ShardState::fold_rows(const RowShape& shape, const RowLayer& layer) {
  run(PreviousRow{.x = nullptr,
                  .history = layer.history,
                  .pending = layer.pending,
                  .y = nullptr,
                  .accepted = accepted(),
                  .tree = {},
                  .rows = 0,
                  .dim = shape.dim},
      stream_);
}

void ShardState::fold_delta(const RecurrentShape& shape, const RecurrentLayer& layer, bool by_row) {
  run(CausalConv{.x = nullptr,
                 .w = nullptr,
                 .history = layer.history,
                 .pending = layer.conv_pending,
                 .y = nullptr,
                 .accepted = accepted(),
                 .tree = {},
                 .rows = 0,
                 .channels = shape.channels(),
                 .n_taps = shape.n_taps},
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
                 .n_k_heads = shape.n_k_heads,
                 .n_v_heads = shape.n_v_heads,
                 .dk = shape.dk,
                 .dv = shape.dv,
                 .row_stride = 0,
                 .order = shape.order,
                 .by_row = by_row},
      stream_);
}

PageList::Range ShardState::page_range(int layer, int n_tokens) const {
  const int n = n_pages(n_tokens);  // whole pages: rows beyond n_tokens are never read
  return {keeps(shapes_, layer, KvRows::kAll) ? 0 : Window(shapes_).first_page(n_tokens), n};
}

std::vector<StatePart> ShardState::snapshot_parts(int layer, int n_tokens, const PageTable& table) const {
  if (const auto* row = std::get_if<RowShape>(&shapes_[layer]))
    return {{bytes(std::get<RowLayer>(layout_.layers[layer]).history, row->dim)}};
  if (const auto* r = std::get_if<RecurrentShape>(&shapes_[layer])) {
    const auto& memory = std::get<RecurrentLayer>(layout_.layers[layer]);
    return {{bytes(memory.S, static_cast<size_t>(r->n_v_heads) * r->dk * r->dv)},
            {bytes(memory.history, static_cast<size_t>(r->n_taps - 1) * r->channels())}};
  }
  const PageMemory::Layer& memory = pages_of(layer).layer(layer);
  const auto [first, end] = page_range(layer, n_tokens);
  const auto pages = table.list(keeps(shapes_, layer, KvRows::kAll) ? KvRows::kAll : KvRows::kWindow).pages(first, end);
  std::vector<StatePart> parts(2);
  for (size_t i = 0, next; i < pages.size(); i = next) {  // consecutive pages form one range
    for (next = i + 1; next < pages.size() && pages[next] == pages[next - 1] + 1; ++next) {
    }
    parts[0].push_back(bytes(memory.k + pages[i] * memory.k_bytes, (next - i) * memory.k_bytes));
    if (memory.v_bytes > 0)
      parts[1].push_back(bytes(memory.v + pages[i] * memory.v_bytes, (next - i) * memory.v_bytes));
  }
  return parts;
}

std::vector<uint64_t> ShardState::part_bytes(int layer, int n_tokens) const {
  if (const auto* row = std::get_if<RowShape>(&shapes_[layer])) return {sizeof(float) * row->dim};
  if (const auto* r = std::get_if<RecurrentShape>(&shapes_[layer]))
    return {sizeof(float) * r->n_v_heads * r->dk * r->dv, sizeof(float) * (r->n_taps - 1) * r->channels()};
  const auto& shape = std::get<KvShape>(shapes_[layer]);
  const auto [first, end] = page_range(layer, n_tokens);
  const KvStorage storage = storage_of(shape, options_);
  return {(end - first) * storage.k_bytes, (end - first) * storage.v_bytes};
}

}  // namespace lb
