// ShardState: one sequence's state on one shard, in the stream's memory: the device's copy of the page tables, the
// append's numbers, recurrent states and pending rows. The pages themselves are in the pools' PageMemory. The host's
// PageTable decides which pages and rows are used.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <variant>
#include <vector>

#include "base/memory.h"
#include "ops/attention.h"
#include "ops/delta_net.h"
#include "ops/stream.h"
#include "state/layer_shape.h"
#include "state/page_memory.h"
#include "state/page_table.h"

namespace lb {

// Memory of one recurrent layer; see ops/delta_net.h.
struct RecurrentLayer {
  float* S;              // [n_v_heads, dk, dv]
  float* history;        // [n_taps - 1, channels]
  float* conv_pending;   // [kMaxTree, channels]
  float* k_pending[2];   // [kMaxTree, n_k_heads, dk]
  float* cs_pending[2];  // [kMaxTree, n_v_heads]
  float* delta_pending;  // [kMaxTree, n_v_heads, dv]
};

// Memory of one row layer; see PreviousRow.
struct RowLayer {
  float* history;  // [dim]
  float* pending;  // [kMaxTree, dim]
};

// Recurrent layers process an append in chunks of at most kMaxTree rows. Chunk 0 folds the committed rows of the
// previous append; each later chunk folds the whole previous chunk. One op call may process several chunks of a chain.
struct RecurrentCall {
  int first_row, rows;
  Accepted accepted;      // rows that the first chunk of the call folds
  const int32_t* buffer;  // [1] key_buffer; (*buffer + flip) % 2 holds the pending keys that it folds
  int flip;
  RecurrentLayer layer;
  bool by_row;  // as in GatedDelta
};

// Memory ranges, in order.
using StatePart = std::vector<std::span<std::byte>>;
size_t bytes_of(const StatePart& part);

class ShardState {
 public:
  // Reserves memory for the layers of `range` from the stream, and sends ops and copies to it. Stream and pages must
  // outlive the state. windows: pages of the layers with a window; null: there are none.
  ShardState(std::vector<LayerShape> layers, const StateOptions& options, Stream& stream, const PageMemory& pages,
             const PageMemory* windows, LayerRange range = {});
  ShardState(const ShardState&) = delete;
  ShardState& operator=(const ShardState&) = delete;
  // Bytes, excluding the pages.
  static size_t planned_bytes(std::span<const LayerShape> layers, const StateOptions& options, LayerRange range = {});
  // Bytes of one layer; 0 for layers whose rows are in pages.
  static size_t layer_bytes(const LayerShape& layer);

  Stream& stream() const { return stream_; }
  std::span<const LayerShape> layers() const { return shapes_; }  // of all shards
  const LayerRange& range() const { return range_; }

  // --- uploads
  void upload_entries(KvRows rows, int first_page, std::span<const int32_t> pages);  // of a page table
  void upload_numbers(const AppendNumbers& numbers);
  // Begins an append: the rows that recurrent() divides, and whether they are computed row by row.
  void begin_append(int rows, bool by_row) { n_rows_ = rows, by_row_ = by_row; }
  // Sets the address from which ops read the numbers of the append in progress; null: numbers().
  void read_numbers_at(AppendNumbers* at) { numbers_at_ = at == nullptr ? layout_.numbers : at; }

  // --- what ops read and write
  AppendNumbers* numbers() const { return layout_.numbers; }
  const int32_t* n_past() const { return &numbers_at_->n_past; }
  Accepted accepted() const { return {numbers_at_->accepted, &numbers_at_->n_accepted}; }
  KvLayer kv(int layer) const;
  RowLayer row(int layer) const { return std::get<RowLayer>(layout_.layers[layer]); }
  int n_calls() const { return (n_rows_ - 1) / stream_.max_chain_rows() + 1; }
  RecurrentCall recurrent(int layer, int call) const;

  // --- ops
  // Moves K and V of a tree's accepted rows to the slots from *n_past on, in this shard's layers of [first, end).
  void send_moves(int first, int end, const int32_t* n_past);
  void fold(bool by_row);                  // folds the accepted rows, per the last numbers uploaded
  void zero();                             // zeroes recurrent states and rows
  void copy_from(const ShardState& from);  // everything, including the page tables

  // Memory of a layer that holds n_tokens tokens: whole pages of K and of V (of its window, if it has one), or S and
  // history, or the last row.
  std::vector<StatePart> snapshot_parts(int layer, int n_tokens, const PageTable& table) const;
  // The sizes of these parts.
  std::vector<uint64_t> part_bytes(int layer, int n_tokens) const;

 private:
  struct KvPages {
    std::byte *k = nullptr, *v = nullptr;  // of the pool
    int32_t* page_table = nullptr;         // of the layout
  };
  using LayerMemory = std::variant<KvPages, RecurrentLayer, RowLayer>;
  struct Layout {
    AppendNumbers* numbers;
    int32_t *page_table, *windows;    // [pages of the capacity] of either kind of layers; null: no layer has a window
    std::vector<LayerMemory> layers;  // of all shards; only those of the range have memory
  };
  const PageMemory& pages_of(int layer) const { return keeps(shapes_, layer, KvRows::kAll) ? pages_ : *windows_; }
  // The pages of a layer after n_tokens tokens.
  PageList::Range page_range(int layer, int n_tokens) const;
  void fold_rows(const RowShape& shape, const RowLayer& layer);
  void fold_delta(const RecurrentShape& shape, const RecurrentLayer& layer, bool by_row);
  static Layout carve(std::span<const LayerShape> shapes, const StateOptions& options, LayerRange range,
                      Carver& carver);
  static LayerMemory carve_layer(const LayerShape& shape, Carver& carver);

  std::vector<LayerShape> shapes_;
  StateOptions options_;
  LayerRange range_;
  Stream& stream_;
  const PageMemory& pages_;
  const PageMemory* windows_;
  std::unique_ptr<Memory> memory_;
  Layout layout_;
  AppendNumbers* numbers_at_;
  int n_rows_ = 0;  // of the append in progress
  bool by_row_ = false;
  std::vector<KvMove> moves_;  // of one send_moves()
};

}  // namespace lb
