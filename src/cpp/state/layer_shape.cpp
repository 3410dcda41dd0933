#include "state/layer_shape.h"

#include <algorithm>

namespace lb {

KvStorage storage_of(const KvShape& shape, const StateOptions& options) {
  const auto bytes = [&](KvType type) {
    return shape.n_kv_heads * kv_head_bytes(type, shape.head_dim + shape.key_tail);
  };
  const KvType k = options.k_type, v = options.v_type;
  if (shape.key_tail == 0) return {k, v, bytes(k), bytes(v)};
  const KvType larger = bytes(v) > bytes(k) ? v : k;
  return {larger, larger, bytes(larger), 0};
}

bool any_folds(std::span<const LayerShape> layers) { return std::ranges::any_of(layers, folds); }

size_t page_bytes(const KvShape& shape, const StateOptions& options) {
  const KvStorage storage = storage_of(shape, options);
  return storage.k_bytes + storage.v_bytes;
}

size_t pending_bytes(const LayerShape& shape) {
  size_t values = 0;  // of one row
  if (const auto* row = std::get_if<RowShape>(&shape)) values = row->dim;
  if (const auto* r = std::get_if<RecurrentShape>(&shape))
    values = r->channels() + size_t{2} * r->n_k_heads * r->dk + size_t{2} * r->n_v_heads + size_t(r->n_v_heads) * r->dv;
  return sizeof(float) * kMaxTree * values;
}

bool keeps(std::span<const LayerShape> layers, int layer, KvRows rows) {
  const auto* kv = std::get_if<KvShape>(&layers[layer]);
  return kv != nullptr && (kv->window > 0) == (rows == KvRows::kWindow);
}

Window::Window(std::span<const LayerShape> layers) {
  for (const LayerShape& layer : layers)
    if (const auto* kv = std::get_if<KvShape>(&layer)) rows_ = std::max(rows_, kv->window);
}

// A sequence also keeps the page of the kMaxTree rows that a rewind may drop, and the pages of the rows that decode
// steps write ahead (SequenceState::reach_ahead).
int Window::pool_pages(const StateOptions& options, int sessions, int n_stages, int n_all_pages) const {
  if (!exists()) return 0;
  constexpr int kAhead = 3, kRewind = kMaxTree / kPageTokens;
  const int64_t n = int64_t{sessions} * (max_pages() + kRewind + kAhead) +
                    int64_t{n_stages + (sessions > 1 ? 1 : 0)} * n_pages(options.append_rows);
  return static_cast<int>(std::min<int64_t>(n, n_all_pages));
}

}  // namespace lb
