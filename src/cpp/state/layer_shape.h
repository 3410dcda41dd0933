// LayerShape: the kind and dimensions of the state that a layer keeps per sequence. StateOptions: its capacity. Sizes
// only; SequenceState and PagePool own the memory.
#pragma once

#include <cstddef>
#include <limits>
#include <span>
#include <variant>

#include "ops/delta_net.h"
#include "quant/kv_type.h"

namespace lb {

struct KvShape {
  int n_kv_heads, head_dim;  // no heads: the layer keeps nothing, it reads another layer's keys and values
  int window = 0;            // rows that a row attends to, including itself; 0: all
};
struct RecurrentShape {
  int n_k_heads, n_v_heads, dk, dv, n_taps;
  HeadOrder order;
  // Channels of the convolution: q, k and v side by side.
  int channels() const { return 2 * n_k_heads * dk + n_v_heads * dv; }
};
// The last committed hidden row, for layers that read each row's predecessor.
struct RowShape {
  int dim;
};
using LayerShape = std::variant<KvShape, RecurrentShape, RowShape>;
// Whether a layer of this shape folds pending rows. Such a layer cannot rewind past folded rows.
inline bool folds(const LayerShape& shape) { return !std::holds_alternative<KvShape>(shape); }
bool any_folds(std::span<const LayerShape> layers);

// Layers [first, end) of a network, whose state is on one shard.
struct LayerRange {
  int first = 0, end = std::numeric_limits<int>::max();  // all layers

  bool has(int layer) const { return layer >= first && layer < end; }
};

struct StateOptions {
  int capacity = 0;  // tokens, committed and appended
  KvType k_type = KvType::kF16, v_type = KvType::kF16;
  int append_rows = 0;  // most rows of an append; smaller values mean kMaxTree
  // On a GPU: single rows and trees leave the state of steps, bit by bit (GatedDelta::by_row). Folding layers then do
  // not rewind, because how many rows are pending depends on the trees.
  bool by_row = false;
};

// In a model with folding layers, a windowed layer keeps only a ring of pages. The folding layers limit every rewind to
// kMaxTree rows, so the ring never has to reach further back: it always has the last `window` rows before
// rewind_floor() and all rows since. In a model of attention layers only, rewind() reaches any length, so every layer
// keeps all rows, whatever its window.

// Pages of the ring of an attention layer; 0: the layer keeps all rows.
int ring_pages(const KvShape& shape, const StateOptions& options, bool folds);
// Bytes of one page of keys and values.
size_t page_bytes(const KvShape& shape, const StateOptions& options);
size_t page_bytes(const KvShape& shape, KvType type);  // of keys or of values
// Bytes of the rows of an append that a layer keeps until they are folded.
size_t pending_bytes(const LayerShape& shape);

// Whether a layer of this index keeps all rows of the sequence, in pages of a PagePool.
bool keeps_all_rows(std::span<const LayerShape> layers, int layer);
// Pages that n_tokens tokens take.
inline int n_pages(int n_tokens) { return n_tokens / kPageTokens + (n_tokens % kPageTokens != 0 ? 1 : 0); }

}  // namespace lb
