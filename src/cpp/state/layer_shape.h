// LayerShape: the kind and dimensions of the state that a layer keeps per sequence. StateOptions: its capacity. Sizes
// only; SequenceState and PagePool own the memory.
#pragma once

#include <algorithm>
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
  int key_tail = 0;          // > 0: values are parts of the keys (KvLayer)
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

// Bytes of one page of keys and values.
size_t page_bytes(const KvShape& shape, const StateOptions& options);
// How a layer stores its keys and values: types, and bytes of a page of each. Where values are parts of the keys, both
// have the larger of the two types, and values take no bytes.
struct KvStorage {
  KvType k_type, v_type;
  size_t k_bytes, v_bytes;
};
KvStorage storage_of(const KvShape& shape, const StateOptions& options);
// Bytes of the rows of an append that a layer keeps until they are folded.
size_t pending_bytes(const LayerShape& shape);

// Pages that n_tokens tokens take.
inline int n_pages(int n_tokens) { return n_tokens / kPageTokens + (n_tokens % kPageTokens != 0 ? 1 : 0); }

// Which rows of a sequence a layer keeps in pages: all of them, or those in the window of the newest. Each kind has a
// PagePool and a page table of its own.
enum class KvRows { kAll, kWindow };
bool keeps(std::span<const LayerShape> layers, int layer, KvRows rows);

// The pages of the layers with a window. These layers share a page table, so the longest window decides for all.
class Window {
 public:
  explicit Window(std::span<const LayerShape> layers);

  bool exists() const { return rows_ > 0; }
  int rows() const { return rows_; }
  // Pages that hold the window of any length.
  int max_pages() const { return n_pages(rows_) + 1; }
  // The first page of the window after n_tokens tokens.
  int first_page(int n_tokens) const { return std::max(n_pages(n_tokens) - max_pages(), 0); }
  // The shortest length whose window begins at this page or later.
  int shortest(int first_page) const { return first_page == 0 ? 0 : (first_page + max_pages() - 1) * kPageTokens + 1; }
  // Pages for `sessions` sequences that all generate, of which two at a time compute appends of options.append_rows
  // rows, one of them up to n_stages appends; with all rows of every sequence in n_all_pages pages.
  int pool_pages(const StateOptions& options, int sessions, int n_stages, int n_all_pages) const;

 private:
  int rows_ = 0;
};

}  // namespace lb
