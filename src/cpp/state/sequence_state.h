// SequenceState: the state that one sequence keeps between steps. Attention layers keep a paged KV cache: all rows, or
// those in the window of the newest ones. Both kinds of pages are in a PagePool each. The sequence takes pages as it
// grows, and releases pages that a rewind leaves empty or that the window has left. Recurrent layers keep a state
// matrix, a convolution history and pending rows; row layers keep the last row and pending rows. All layers follow one
// protocol:
//   append   The forward pass writes rows beyond the committed length, into KV slots and pending rows.
//   commit   An accepted path of these rows joins the sequence. Recurrent layers fold the path into their state at the
//            start of the next append, so that nothing has to be undone.
//   rewind   Shortens the sequence at no cost to any length not yet folded whose window is still there.
// One PageTable on the host tracks pages, lengths and the append; a ShardState holds the memory of each shard.
// Independent of models, tokens and files.
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
  // Most tokens that one launch of decode steps computes. The launch sees the page table as of its start.
  static constexpr int kLaunchTokens = 64;

  // The state on one shard, with pools of its own, of one context. Reserves memory from its stream, and sends ops and
  // copies to it. The stream must outlive the state.
  SequenceState(std::vector<LayerShape> layers, const StateOptions& options, Stream& stream);
  // The state on several shards: each has some of the layers, in order, or its heads of all layers. pools: have the
  // same layers and KV types, at least one context of pages, and a memory per shard.
  struct Part {
    Stream* stream;
    LayerRange range;
    std::vector<LayerShape> layers;  // all layers, with the heads that this shard has
  };
  SequenceState(const StateOptions& options, std::span<const Part> parts, const KvPools& pools);
  SequenceState(const SequenceState&) = delete;
  SequenceState& operator=(const SequenceState&) = delete;
  // Bytes, excluding the pools.
  static size_t planned_bytes(std::span<const LayerShape> layers, const StateOptions& options) {
    return ShardState::planned_bytes(layers, options);
  }

  int capacity() const { return options_.capacity; }
  // The stream of the last shard, which computes the logits.
  Stream& stream() const { return shards_.back()->stream(); }
  Stream& stream_of(int shard) const { return shards_[shard]->stream(); }
  int n_tokens() const { return table_.n_tokens(); }          // committed
  int rewind_floor() const { return table_.rewind_floor(); }  // the shortest length rewind() can reach
  const StateOptions& options() const { return options_; }
  std::span<const LayerShape> layers() const { return shards_.front()->layers(); }

  // --- pages of the layers that keep all rows. Each call grows, shares or frees the window pages accordingly.
  const std::shared_ptr<PagePool>& pool() const { return table_.all().pool(); }
  std::span<const int32_t> pages() const { return table_.all().pages(); }  // in order; empty while swapped out
  int first_window_page() const { return table_.windows().first(); }       // 0: all rows, or no layer has a window
  // The pages of the layers with a window, which hold the window after n_tokens tokens. No pool: no layer has a window.
  const std::shared_ptr<PagePool>& window_pool() const { return table_.windows().pool(); }
  std::span<const int32_t> window_pages(int n_tokens) const;
  int n_window_pages(int n_tokens) const;                             // how many there are, whatever the sequence holds
  int max_window_pages() const { return table_.max_window_pages(); }  // at any length
  // Rows that still fit after the committed ones, in the capacity and in own plus free pages.
  int room() const { return table_.room(); }
  // Takes pages for n_tokens tokens, and copies a shared page that rows after the committed ones will write. Swaps in
  // first. False: the pool has too few free pages; nothing changed.
  bool reserve(int n_tokens);
  // If the pools have enough, takes pages ahead for rows that later decode steps write. A launch that starts at row r
  // may write rows below r + kLaunchTokens, so their page-table entries must be uploaded before it starts. Uploading
  // one page more than that ensures that every later entry arrives before the launch that reads it.
  void reach_ahead();
  // Takes pages for an append of `rows` rows, as begin_append() would. Throws kMemory and changes nothing if the pool
  // has too few.
  void take_rows(int rows);
  // Copies the pages to host memory and releases them; the rest of the state stays. Calls that need the pages swap in
  // first. Shared pages come back as private copies.
  void swap_out();
  void swap_in();  // throws kMemory and changes nothing if the pool has too few pages; no effect if not swapped out
  bool is_swapped_out() const { return swapped_ != nullptr; }
  // Becomes a copy of another state of the same pools, which must not be appending: shares its pages, copies the rest.
  void fork(SequenceState& from);
  // Replaces the pages from first_page on by these pages of the pool, shared. kOwnPage: a fresh private page with
  // undefined contents. windows: the window pages of the new length, shared; empty: private pages with undefined
  // contents. Throws kMemory and changes nothing if a pool has too few.
  static constexpr int32_t kOwnPage = PageList::kOwnPage;
  void set_pages(int first_page, std::span<const int32_t> pages, std::span<const int32_t> windows = {});

  // --- during an append of `rows` rows (the forward pass)
  void begin_append(int rows, bool is_tree);
  // begin_append() of a chain without the upload: the caller copies the result to at[shard], in that shard's memory,
  // from which this append's ops read it.
  const AppendNumbers& begin_append_at(std::span<AppendNumbers* const> at, int rows);
  // Begins an append of one row after an append of one row. Uploads no numbers: NextToken has incremented them on the
  // device.
  void begin_next();
  // Begins an append of one row whose ops are compiled but not run, so it takes no page. End it with abort_append().
  void begin_plan();
  // A chain whose ops are sent to one shard after the other, while other appends of this state are between them.
  struct StagedAppend {
    AppendNumbers numbers;
    int rows;
  };
  // Appends a chain and commits it before its ops are sent. Each shard calls begin_on() before its first op of the
  // append, and end_staged() follows once all shards have been sent all ops, before the next append that is not
  // staged. To end such appends half-way, call abort_append() and rewind to a length whose rows are computed.
  StagedAppend begin_staged(int rows);
  void begin_on(int shard, const StagedAppend& append);
  void end_staged(const StagedAppend& append) { table_.end_staged(append.rows); }
  // shard: one that has the layer.
  KvLayer kv(int layer, int shard = 0) const { return shards_[shard]->kv(layer); }
  const int32_t* n_past(int shard = 0) const { return shards_[shard]->n_past(); }
  AppendNumbers* numbers(int shard = 0) const { return shards_[shard]->numbers(); }
  using Call = RecurrentCall;
  int n_calls(int shard = 0) const { return shards_[shard]->n_calls(); }
  Call recurrent(int layer, int call, int shard = 0) const {
    LB_ASSERT(call < n_calls(shard));
    return shards_[shard]->recurrent(layer, call);
  }
  RowLayer row(int layer, int shard = 0) const { return shards_[shard]->row(layer); }
  Accepted accepted(int shard = 0) const { return shards_[shard]->accepted(); }
  // Sends the numbers of the append in progress to a shard whose NextToken has not incremented them.
  void send_numbers(int shard) { shards_[shard]->upload_numbers(table_.numbers()); }
  void end_append();
  // Sets n_past() to the committed length, for ops that run between two appends: they read the committed sequence and
  // write up to `rows` rows after it.
  void begin_draft(int rows);

  // --- after it
  // Keeps these rows of the append, ascending from the root, and drops all others. A chain can keep only a prefix,
  // which must reach into the last chunk if the model has recurrent layers. n_to_move: number of leading layers whose K
  // and V still have to be moved; send_moves() has already moved the others.
  void commit(std::span<const int32_t> path) { commit(path, int(layers().size())); }
  void commit(std::span<const int32_t> path, int n_to_move);
  // Moves, in a shard's layers of [first, end), the K and V of the path in numbers() to the slots from *n_past on,
  // where commit() expects them.
  void send_moves(int shard, int first, int end, const int32_t* n_past) {
    shards_[shard]->send_moves(first, end, n_past);
  }
  void commit_chain(int keep) { table_.commit_chain(keep); }  // the first `keep` rows
  void rewind(int n_tokens);
  // Ends an append whose forward pass stopped half-way and drops its rows. With recurrent layers it empties the
  // sequence, because some layers have folded and others have not.
  void abort_append();
  void reset();
  void fold();  // folds all committed rows now, for instance before a snapshot

  // The shards that have a layer, in order, each with its ShardState::snapshot_parts(). Call fold() before reading.
  struct ShardParts {
    int shard;
    std::vector<StatePart> parts;
  };
  std::vector<ShardParts> snapshot_parts(int layer, int n_tokens) const;
  // The sizes of these parts, in order, even if the state has no pages for n_tokens.
  std::vector<uint64_t> part_bytes(int layer, int n_tokens) const;
  void restore_length(int n_tokens) { table_.set_length(n_tokens); }  // call after all parts are filled

  // Repeats the constructor's upload, after a loan has zeroed the memory (LentMemory).
  void upload_page_tables();

 private:
  void begin(int rows, bool is_tree, bool takes_pages = true);
  void begin_in_table(int rows, bool is_tree, bool takes_pages);
  bool take_pages(int n_tokens, int rows_ahead);
  bool try_swap_in();
  void drop_pages();
  // Calls visit(list) for the pages of each kind that the model has.
  template <class Visit>
  void for_lists(Visit&& visit) const;
  void upload_entries(int first_page);
  void upload_numbers();

  StateOptions options_;
  bool has_folding_;  // any layer folds()
  PageTable table_;
  std::vector<std::unique_ptr<ShardState>> shards_;
  std::unique_ptr<std::byte[]> swapped_;  // the pages' bytes while swapped out; else null
  bool launch_may_run_ = false;           // a launch of decode steps, which sees the page table as of its start
};

}  // namespace lb
