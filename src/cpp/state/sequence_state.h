// Everything one token sequence keeps between steps: a paged KV cache for attention layers, state matrix, conv
// history and pending rows for recurrent layers. One protocol for both:
//   append   the forward pass writes rows beyond the committed length (KV slots, pending rows)
//   commit   an accepted path of those rows becomes part of the sequence; recurrent layers fold it lazily, at the
//            start of the next append, so that nothing has to be undone
//   rewind   shortens the sequence, at no cost, to any length not yet folded (attention-only models: any length)
// Owns the memory; knows nothing of models, tokens or files.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <variant>
#include <vector>

#include "base/dtype.h"
#include "base/memory.h"
#include "ops/attention.h"
#include "ops/delta_net.h"
#include "ops/stream.h"

namespace lb {

struct KvShape {
  int n_kv_heads, head_dim;
};
struct RecurrentShape {
  int n_k_heads, n_v_heads, dk, dv, n_taps;
  HeadOrder order;
  int channels() const { return 2 * n_k_heads * dk + n_v_heads * dv; }
};
using LayerShape = std::variant<KvShape, RecurrentShape>;

struct StateOptions {
  int capacity = 0;  // tokens, committed and appended together
  DType k_type = DType::kF16, v_type = DType::kF16;
};

// Pointers of one recurrent layer; shapes as in ops/delta_net.h.
struct RecurrentLayer {
  float* S;
  float* history;
  float* conv_pending;
  float* k_pending[2];
  float* cs_pending[2];
  float* delta_pending;
};

// The numbers of the append in progress, as the ops read them.
struct AppendNumbers {
  int32_t n_past;      // committed tokens
  int32_t key_buffer;  // which k_pending and cs_pending hold the previous append's
  int32_t n_accepted;  // of the previous append, waiting to be folded
  int32_t n_run;       // kMaxTree: a run folds the whole run before it
  int32_t accepted[kMaxTree];
  int32_t run[kMaxTree];  // 0, 1, 2, ...
};

class SequenceState {
 public:
  // The memory is the stream's, and so are all ops and copies from here; the stream outlives the state.
  SequenceState(std::vector<LayerShape> layers, const StateOptions& options, Stream& stream);
  static size_t planned_bytes(std::span<const LayerShape> layers, const StateOptions& options);

  int capacity() const { return options_.capacity; }
  Stream& stream() const { return stream_; }
  int n_tokens() const { return n_tokens_; }  // committed
  int rewind_floor() const;                   // the shortest length rewind() can reach
  const StateOptions& options() const { return options_; }
  std::span<const LayerShape> layers() const { return shapes_; }

  // --- during an append of `rows` rows (the forward pass)
  void begin_append(int rows, const Tree& tree);
  // One row after an append of one, which the device has moved the numbers past (NextToken).
  void begin_next();
  KvLayer kv(int layer) const;
  const int32_t* n_past() const { return &layout_.numbers->n_past; }
  AppendNumbers* numbers() const { return layout_.numbers; }
  // Recurrent layers take an append in runs of at most kMaxTree rows; run 0 folds what was accepted before, each
  // later run folds the whole run before it. A stream takes several runs of a chain in one call.
  struct Call {
    int first_row, rows;
    Accepted accepted;
    const int32_t* buffer;
    int flip;
    RecurrentLayer layer;
  };
  int n_calls() const { return n_calls_; }
  Call recurrent(int layer, int call) const;
  void end_append();

  // --- after it
  // Keeps these rows of the append (indices in order from the root) and drops the rest. For a chain: a prefix that
  // reaches into the last run; `keep` alone says how long.
  void commit(std::span<const int32_t> path);
  void commit_chain(int keep);
  void rewind(int n_tokens);
  // The forward pass stopped half-way: attention-only sequences keep their length, others are emptied.
  void abort_append();
  void reset();
  void fold();  // brings recurrent layers up to n_tokens, e.g. before a snapshot

  // Raw memory of a layer for snapshots: the bytes that hold n_tokens() tokens, folded.
  std::vector<std::span<std::byte>> snapshot_parts(int layer, int n_tokens) const;
  void restore_length(int n_tokens);  // after all parts were filled

 private:
  struct KvPages {
    std::byte *k, *v;
  };
  using LayerMemory = std::variant<KvPages, RecurrentLayer>;
  struct Layout {
    AppendNumbers* numbers;
    int32_t* page_table;  // identity: one sequence owns its pages in order
    std::vector<LayerMemory> layers;
  };
  void begin(int rows, const Tree& tree);
  void publish() { stream_.upload(layout_.numbers, &numbers_, sizeof numbers_); }
  static Layout carve(std::span<const LayerShape> shapes, const StateOptions& options, Carver& carver);

  std::vector<LayerShape> shapes_;
  StateOptions options_;
  Stream& stream_;
  bool has_recurrent_ = false;
  std::unique_ptr<Memory> memory_;
  Layout layout_;

  int n_tokens_ = 0;
  int n_folded_ = 0;       // tokens in S; the rest of n_tokens_ are accepted rows
  AppendNumbers numbers_;  // of the next append

  bool appending_ = false, appended_ = false;
  bool is_tree_ = false;
  int n_rows_ = 0, n_runs_ = 0, n_calls_ = 0;
};

}  // namespace lb
