// LayerShape: what a layer of a sequence keeps, and StateOptions: how much of it. Sizes only; SequenceState and
// PagePool own the memory.
#pragma once

#include <cstddef>
#include <span>
#include <variant>

#include "ops/delta_net.h"
#include "quant/kv_type.h"

namespace lb {

struct KvShape {
  int n_kv_heads, head_dim;
  int window = 0;  // rows that a row sees back to, itself included; 0: all
};
struct RecurrentShape {
  int n_k_heads, n_v_heads, dk, dv, n_taps;
  HeadOrder order;
  // Channels of the convolution: q, k and v side by side.
  int channels() const { return 2 * n_k_heads * dk + n_v_heads * dv; }
};
// The last committed row of an append's hidden rows, for layers that read the row before each.
struct RowShape {
  int dim;
};
using LayerShape = std::variant<KvShape, RecurrentShape, RowShape>;
// Whether a layer of this shape folds its pending rows, so that it cannot step back beyond them.
inline bool folds(const LayerShape& shape) { return !std::holds_alternative<KvShape>(shape); }
bool any_folds(std::span<const LayerShape> layers);

struct StateOptions {
  int capacity = 0;  // tokens, committed and appended
  KvType k_type = KvType::kF16, v_type = KvType::kF16;
  int append_rows = 0;  // most rows of an append; kMaxTree if less
};

// A layer with a window keeps a ring of pages where other layers fold. Those layers bound every rewind to kMaxTree
// rows, so the ring needs no bound of its own: it always has the last `window` rows before rewind_floor() and those
// since. Where all layers are attention, rewind() reaches any length, and a layer keeps all rows whatever its window.

// Pages of the ring of an attention layer; 0: the layer keeps all rows.
int ring_pages(const KvShape& shape, const StateOptions& options, bool folds);
// Bytes of one page of keys and values.
size_t page_bytes(const KvShape& shape, const StateOptions& options);
size_t page_bytes(const KvShape& shape, KvType type);  // of keys or of values
// Bytes of the rows of an append that a layer keeps until they are folded.
size_t pending_bytes(const LayerShape& shape);

// Whether a layer of this index keeps all rows of the sequence, in pages of a PagePool.
bool keeps_all_rows(std::span<const LayerShape> layers, int layer);
// Pages of so many tokens.
inline int n_pages(int n_tokens) { return (n_tokens + kPageTokens - 1) / kPageTokens; }

}  // namespace lb
