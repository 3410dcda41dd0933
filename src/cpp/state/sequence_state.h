// SequenceState: what one sequence keeps between steps. Attention layers keep a paged KV cache, layers with a window
// only the last pages of it. Layers that keep all rows have their pages in a PagePool. The sequence takes pages as it
// grows, and gives back what a rewind leaves without rows. Recurrent layers keep a state matrix, a convolution history
// and pending rows; row layers keep the last row, and pending rows. All follow one protocol:
//   append   The forward pass writes rows beyond the committed length, into KV slots and pending rows.
//   commit   An accepted path of these rows joins the sequence. Recurrent layers fold the path into their state at the
//            start of the next append, so that nothing has to be undone.
//   rewind   Shortens the sequence at no cost to any length not yet folded, or to any length without recurrent layers.
// Owns the memory but for the pool's; knows nothing of models, tokens or files.
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
#include "state/page_pool.h"

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

// Memory of one layer of rows; see PreviousRow.
struct RowLayer {
  float* history;  // [dim]
  float* pending;  // [kMaxTree, dim]
};

// Numbers of the append in progress, in the stream's memory: ops read them through pointers, so recorded ops replay.
struct AppendNumbers {
  int32_t n_past;              // committed tokens
  int32_t key_buffer;          // 0 or 1: which k_pending and cs_pending hold the previous append's rows
  int32_t n_accepted;          // rows of the previous append that are committed and not folded
  int32_t n_chunk;             // kMaxTree: a later chunk folds the whole chunk before it
  int32_t accepted[kMaxTree];  // [n_accepted] their rows, ascending
  int32_t chunk[kMaxTree];     // 0, 1, 2, ...
};

class SequenceState {
 public:
  // Tokens that one launch of decode steps computes at most. The launch reads the page table as of its start.
  static constexpr int kLaunchTokens = 64;

  // Reserves memory from the stream and sends ops and copies to it. The stream must outlive the state. pool: has these
  // layers and types, and room for at least one context; null: the state makes one of that size.
  SequenceState(std::vector<LayerShape> layers, const StateOptions& options, Stream& stream,
                std::shared_ptr<PagePool> pool = nullptr);
  ~SequenceState();
  SequenceState(const SequenceState&) = delete;
  SequenceState& operator=(const SequenceState&) = delete;
  // Bytes besides the pool.
  static size_t planned_bytes(std::span<const LayerShape> layers, const StateOptions& options);
  // The share of one layer; 0 for layers whose pages lie in the pool.
  static size_t layer_bytes(std::span<const LayerShape> layers, int layer, const StateOptions& options);

  int capacity() const { return options_.capacity; }
  Stream& stream() const { return stream_; }
  int n_tokens() const { return n_tokens_; }  // committed
  int rewind_floor() const;                   // the shortest length rewind() can reach
  const StateOptions& options() const { return options_; }
  std::span<const LayerShape> layers() const { return shapes_; }

  // --- pages
  const std::shared_ptr<PagePool>& pool() const { return pool_; }
  std::span<const int32_t> pages() const { return pages_; }  // of the pool, in order; empty while swapped out
  // Rows behind the committed ones that the capacity, this state's pages and the free ones have room for.
  int room() const;
  // Takes pages for n_tokens tokens and copies shared pages that rows behind the committed ones will write. Swaps in
  // first. False: the pool has too few free pages, and nothing changed.
  bool reserve(int n_tokens);
  // Takes the pages of rows that later decode steps of the device write, where the pool has enough. A launch that
  // starts at row r may write rows below r + kLaunchTokens. Their entries of the page table must be uploaded before it
  // starts. With entries for a page more, every later one is uploaded before the launch that reads it.
  void reach_ahead();
  // Takes pages for rows of an append; begin_append() does so too. Throws kMemory, with nothing changed.
  void take_rows(int rows);
  // Copies the pages to host memory and gives them back; the rest of the state stays. Calls that need the pages swap in
  // first. Shared pages come back as this state's own.
  void swap_out();
  void swap_in();  // throws kMemory, with nothing changed, where the pool has too few pages; nothing if not swapped out
  bool is_swapped_out() const { return swapped_ != nullptr; }
  // Becomes the sequence of another state of the same pool, which is not appending: shares its pages, copies the rest.
  void fork(SequenceState& from);
  // Makes the pages from first_page on these of the pool, shared; kOwnPage: one that only this state has, with any
  // contents. Throws kMemory, with nothing changed, where the pool has too few.
  static constexpr int32_t kOwnPage = -1;
  void set_pages(int first_page, std::span<const int32_t> pages);

  // --- during an append of `rows` rows (the forward pass)
  void begin_append(int rows, const Tree& tree);
  // begin_append() of a chain without the upload: the caller copies the result to `at`, in the stream's memory, where
  // the ops of this append read it.
  const AppendNumbers& begin_append_at(AppendNumbers* at, int rows);
  // Begins an append of one row after an append of one row. Uploads no numbers: NextToken has counted them up on the
  // device.
  void begin_next();
  // Begins an append of one row whose ops are compiled and not run: it takes no page. Ends by abort_append().
  void begin_plan();
  KvLayer kv(int layer) const;
  const int32_t* n_past() const { return &numbers_at_->n_past; }
  AppendNumbers* numbers() const { return layout_.numbers; }
  // Recurrent layers process an append in chunks of at most kMaxTree rows. Chunk 0 folds the committed rows of the
  // previous append; each later chunk folds the whole chunk before it. One call of the ops takes several chunks of a
  // chain.
  struct Call {
    int first_row, rows;
    Accepted accepted;      // rows that the call's first chunk folds
    const int32_t* buffer;  // [1] key_buffer; (*buffer + flip) % 2 holds the pending keys that it folds
    int flip;
    RecurrentLayer layer;
  };
  int n_calls() const { return n_calls_; }
  Call recurrent(int layer, int call) const;
  RowLayer row(int layer) const { return std::get<RowLayer>(layout_.layers[layer]); }
  Accepted accepted() const { return {numbers_at_->accepted, &numbers_at_->n_accepted}; }
  void end_append();
  // Makes n_past() the committed length, for ops that look at the committed sequence between two appends and write up
  // to `rows` rows behind it.
  void begin_draft(int rows);

  // --- after it
  // Keeps these rows of the append, ascending from the root, and drops the others. A chain can only keep a
  // prefix; with recurrent layers the prefix must reach into the last chunk. n_to_move: layers whose K and V still have
  // to be moved; send_moves() has moved those of the later ones.
  void commit(std::span<const int32_t> path) { commit(path, int(shapes_.size())); }
  void commit(std::span<const int32_t> path, int n_to_move);
  // Moves the K and V of layers [first, end) to where commit() expects those of the path that numbers() says, in slots
  // from *n_past on.
  void send_moves(int first, int end, const int32_t* n_past);
  void commit_chain(int keep);  // the first `keep` rows
  void rewind(int n_tokens);
  // Ends an append whose forward pass stopped half-way. Drops its rows; with recurrent layers empties the sequence, as
  // some layers have folded and some have not.
  void abort_append();
  void reset();
  void fold();  // folds all committed rows now, for instance before a snapshot

  // Whether a layer keeps the pages of all rows. Prefix caches hold such pages one by one; what the other layers keep
  // belongs to one length of the sequence.
  bool keeps_all_rows(int layer) const { return lb::keeps_all_rows(shapes_, layer); }
  // Pieces of memory, in order.
  using Part = std::vector<std::span<std::byte>>;
  // Memory of a layer that holds n_tokens tokens: whole pages of K and of V, or S and history, or the last row. A ring
  // gives the pages of its last `window` rows, oldest first. Call fold() before reading.
  std::vector<Part> snapshot_parts(int layer, int n_tokens) const;
  void restore_length(int n_tokens);  // call after all parts are filled

  // Repeats the upload of the constructor, for memory that a loan has zeroed (LentMemory).
  void upload_page_tables();

 private:
  // Pages in the pool, or a ring.
  struct KvPages {
    std::byte *k, *v;
    int32_t* page_table;  // [pages of the capacity] of the state, or the ring's own: page modulo `ring`
    int ring;             // pages of the ring; 0: none
  };
  using LayerMemory = std::variant<KvPages, RecurrentLayer, RowLayer>;
  struct Layout {
    AppendNumbers* numbers;
    int32_t* page_table;  // [pages of the capacity] of the layers that keep all rows
    std::vector<LayerMemory> layers;
  };
  void begin(int rows, const Tree& tree, bool takes_pages = true);
  bool take_pages(int n_tokens, int rows_ahead);
  bool try_swap_in();
  void give_back(int first_page);
  void drop_pages();
  void upload_table(int first_page);
  void upload_ring(const KvPages& ring);
  std::array<Part, 2> page_parts(int layer, int n) const;
  void publish() { stream_.upload(layout_.numbers, &numbers_, sizeof numbers_); }
  static Layout carve(std::span<const LayerShape> shapes, const StateOptions& options, Carver& carver);
  static LayerMemory carve_layer(const LayerShape& shape, const StateOptions& options, bool folds, int32_t* page_table,
                                 Carver& carver);

  std::vector<LayerShape> shapes_;
  StateOptions options_;
  Stream& stream_;
  bool has_folding_ = false;  // any layer folds()
  std::shared_ptr<PagePool> pool_;
  std::unique_ptr<Memory> memory_;
  Layout layout_;
  std::vector<int32_t> pages_;  // of the pool
  std::vector<int32_t> table_;  // [pages of the capacity] the page table as uploaded; entries behind pages_ are old
  std::unique_ptr<std::byte[]> swapped_;  // the bytes of the pages while they are swapped out; else null
  bool launch_may_run_ = false;           // a launch of decode steps, which reads the page table as of its start

  int n_tokens_ = 0;
  int n_folded_ = 0;                     // tokens in S; the others of n_tokens_ are still pending rows
  AppendNumbers numbers_;                // of the next append, on the host
  AppendNumbers* numbers_at_ = nullptr;  // where its ops read them: layout_.numbers but for begin_append_at()

  std::vector<KvMove> moves_;  // of one send_moves()

  // appending_: between begin_append() and end_append(); appended_: from there until commit, rewind or abort.
  bool appending_ = false, appended_ = false;
  // Shape of the append.
  bool is_tree_ = false;
  int n_rows_ = 0, n_chunks_ = 0, n_calls_ = 0;
};

size_t bytes_of(const SequenceState::Part& part);

}  // namespace lb
