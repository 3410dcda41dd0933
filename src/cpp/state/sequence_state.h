// SequenceState: what one sequence keeps between steps. Attention layers keep a paged KV cache, layers with a window
// only the last pages of it. Layers that keep all rows have their pages in a PagePool. The sequence takes pages as it
// grows, and gives back what a rewind leaves without rows. Recurrent layers keep a state matrix, a convolution history
// and pending rows; row layers keep the last row, and pending rows. All follow one protocol:
//   append   The forward pass writes rows beyond the committed length, into KV slots and pending rows.
//   commit   An accepted path of these rows joins the sequence. Recurrent layers fold the path into their state at the
//            start of the next append, so that nothing has to be undone.
//   rewind   Shortens the sequence at no cost to any length not yet folded, or to any length without recurrent layers.
// Pages, lengths and the append are book-keeping on the host (PageTable), once; the memory of each shard is a
// ShardState. Knows nothing of models, tokens or files.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "state/page_table.h"
#include "state/shard_state.h"

namespace lb {

class SequenceState {
 public:
  // Tokens that one launch of decode steps computes at most. The launch reads the page table as of its start.
  static constexpr int kLaunchTokens = 64;

  // Reserves memory from the stream, of the only shard so far, and sends ops and copies to it. The stream must outlive
  // the state. pool: has these layers and types, and room for at least one context; null: the state makes one of that
  // size.
  SequenceState(std::vector<LayerShape> layers, const StateOptions& options, Stream& stream,
                std::shared_ptr<PagePool> pool = nullptr);
  SequenceState(const SequenceState&) = delete;
  SequenceState& operator=(const SequenceState&) = delete;
  // Bytes besides the pool.
  static size_t planned_bytes(std::span<const LayerShape> layers, const StateOptions& options) {
    return ShardState::planned_bytes(layers, options);
  }

  int capacity() const { return options_.capacity; }
  Stream& stream() const { return shard().stream(); }
  int n_tokens() const { return table_.n_tokens(); }          // committed
  int rewind_floor() const { return table_.rewind_floor(); }  // the shortest length rewind() can reach
  const StateOptions& options() const { return options_; }
  std::span<const LayerShape> layers() const { return shard().layers(); }

  // --- pages
  const std::shared_ptr<PagePool>& pool() const { return table_.pool(); }
  std::span<const int32_t> pages() const { return table_.pages(); }  // in order; empty while swapped out
  // Rows behind the committed ones that the capacity, this state's pages and the free ones have room for.
  int room() const { return table_.room(); }
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
  static constexpr int32_t kOwnPage = PageTable::kOwnPage;
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
  KvLayer kv(int layer) const { return shard().kv(layer); }
  const int32_t* n_past() const { return shard().n_past(); }
  AppendNumbers* numbers() const { return shard().numbers(); }
  using Call = RecurrentCall;
  int n_calls() const { return (table_.n_rows() - 1) / stream().max_chain_rows() + 1; }
  Call recurrent(int layer, int call) const {
    LB_ASSERT(table_.is_appending() && call < n_calls());
    return shard().recurrent(layer, call, table_.n_rows());
  }
  RowLayer row(int layer) const { return shard().row(layer); }
  Accepted accepted() const { return shard().accepted(); }
  void end_append();
  // Makes n_past() the committed length, for ops that look at the committed sequence between two appends and write up
  // to `rows` rows behind it.
  void begin_draft(int rows);

  // --- after it
  // Keeps these rows of the append, ascending from the root, and drops the others. A chain can only keep a
  // prefix; with recurrent layers the prefix must reach into the last chunk. n_to_move: layers whose K and V still have
  // to be moved; send_moves() has moved those of the later ones.
  void commit(std::span<const int32_t> path) { commit(path, int(layers().size())); }
  void commit(std::span<const int32_t> path, int n_to_move);
  // Moves the K and V of layers [first, end) to where commit() expects those of the path that numbers() says, in slots
  // from *n_past on.
  void send_moves(int first, int end, const int32_t* n_past) { shard().send_moves(first, end, n_past); }
  void commit_chain(int keep) { table_.commit_chain(keep); }  // the first `keep` rows
  void rewind(int n_tokens);
  // Ends an append whose forward pass stopped half-way. Drops its rows; with recurrent layers empties the sequence, as
  // some layers have folded and some have not.
  void abort_append();
  void reset();
  void fold();  // folds all committed rows now, for instance before a snapshot

  // Whether a layer keeps the pages of all rows. Prefix caches hold such pages one by one; what the other layers keep
  // belongs to one length of the sequence.
  bool keeps_all_rows(int layer) const { return lb::keeps_all_rows(layers(), layer); }
  using Part = StatePart;
  // ShardState::snapshot_parts(). Call fold() before reading.
  std::vector<Part> snapshot_parts(int layer, int n_tokens) const {
    return shard().snapshot_parts(layer, n_tokens, table_.pages());
  }
  void restore_length(int n_tokens) { table_.set_length(n_tokens); }  // call after all parts are filled

  // Repeats the upload of the constructor, for memory that a loan has zeroed (LentMemory).
  void upload_page_tables();

 private:
  ShardState& shard() const { return *shards_.front(); }
  void begin(int rows, const Tree& tree, bool takes_pages = true);
  bool take_pages(int n_tokens, int rows_ahead);
  bool try_swap_in();
  void drop_pages();
  void upload_entries(int first_page);
  void upload_numbers();

  StateOptions options_;
  bool has_folding_;  // any layer folds()
  PageTable table_;
  std::vector<std::unique_ptr<ShardState>> shards_;
  std::unique_ptr<std::byte[]> swapped_;  // the bytes of the pages while they are swapped out; else null
  bool launch_may_run_ = false;           // a launch of decode steps, which reads the page table as of its start
};

}  // namespace lb
