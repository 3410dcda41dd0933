#include "state/layer_shape.h"

#include <algorithm>

namespace lb {

size_t page_bytes(const KvShape& shape, KvType type) { return shape.n_kv_heads * kv_head_bytes(type, shape.head_dim); }

bool any_folds(std::span<const LayerShape> layers) { return std::ranges::any_of(layers, folds); }

// Beyond rewind_floor() there may be kMaxTree rows that are committed but not folded, then kMaxTree rows of a draft or
// an append. A longer append needs a slot for each of its rows.
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

bool keeps_all_rows(std::span<const LayerShape> layers, int layer) {
  const auto* kv = std::get_if<KvShape>(&layers[layer]);
  return kv != nullptr && (kv->window == 0 || !any_folds(layers));
}

}  // namespace lb
