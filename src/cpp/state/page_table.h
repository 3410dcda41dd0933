// PageTable: host-side bookkeeping of one sequence, common to all shards: its pages in the pools, how many tokens are
// committed and folded, and the append in progress. It touches no device memory: SequenceState uploads the changes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "ops/append.h"
#include "state/layer_shape.h"
#include "state/page_list.h"

namespace lb {

// Numbers of the append in progress, in a stream's memory. Ops read them through pointers, so recordings can be
// replayed.
struct AppendNumbers {
  int32_t n_past;              // committed tokens
  int32_t key_buffer;          // 0 or 1: which k_pending and cs_pending hold the previous append's rows
  int32_t n_accepted;          // rows of the previous append that are committed and not folded
  int32_t n_chunk;             // kMaxTree: each later chunk folds the whole previous chunk
  int32_t accepted[kMaxTree];  // [n_accepted] their row indices, ascending
  int32_t chunk[kMaxTree];     // 0, 1, 2, ...
};

// The pools of an engine: pages of the layers that keep all rows, and of those that keep a window; null: no layer has a
// window.
struct KvPools {
  std::shared_ptr<PagePool> all, windows;
};

class PageTable {
 public:
  // has_folding: any layer folds().
  PageTable(const StateOptions& options, bool has_folding, const Window& window, const KvPools& pools);
  ~PageTable();
  PageTable(const PageTable&) = delete;
  PageTable& operator=(const PageTable&) = delete;

  // --- pages
  const PageList& all() const { return all_; }
  const PageList& windows() const { return windows_; }  // empty if no layer has a window
  const PageList& list(KvRows rows) const { return rows == KvRows::kAll ? all_ : windows_; }
  // Rows that still fit after the committed ones, in the capacity and in own plus free pages.
  int room() const;
  // Pages by which a sequence grows.
  struct Growth {
    PageList::Growth all, windows;
    bool is_empty() const { return all.fresh.empty() && windows.fresh.empty(); }
    int first_changed() const { return std::min(all.first_changed, windows.first_changed); }
  };
  // Takes pages for n_tokens tokens, and for rows_ahead more if the pools have enough. Pages that will be written must
  // be exclusive to this sequence: only the last page with committed rows can be shared and need a copy. Layers with a
  // window get pages for the next append; if the tokens take several appends, as many pages as these hold at a time.
  // None: a pool has too few pages; nothing changed.
  std::optional<Growth> take(int n_tokens, int rows_ahead);
  // Adds the pages. The caller has copied the shared pages, if any.
  void grow(const Growth& growth);
  void give_back(int first_page);
  void drop_pages();
  // Returns all pages. take_back() later takes as many again. False: a pool has too few; nothing changed.
  void lend_pages();
  bool take_back();
  // See SequenceState::set_pages().
  void set_pages(int first_page, std::span<const int32_t> pages, std::span<const int32_t> windows);
  // Becomes a copy of another sequence of the same pools, sharing its pages. Copies the uploaded entries too.
  void share(const PageTable& from);
  PageList::Range update_entries(KvRows rows, int first_page) {
    return rows == KvRows::kAll ? all_.update_entries(first_page) : windows_.update_entries(first_page);
  }
  // For the pool, when another sequence needs pages: up to n pages before the window of every length that a rewind of
  // kMaxTree rows reaches. Until then the sequence keeps them, so that it can rewind further.
  std::vector<int32_t> give_up(int n);

  // Pages that hold the window after n_tokens tokens.
  PageList::Range window_range(int n_tokens) const { return {window_.first_page(n_tokens), n_pages(n_tokens)}; }
  int max_window_pages() const { return window_.exists() ? window_.max_pages() : 0; }

  // --- lengths
  int n_tokens() const { return n_tokens_; }  // committed
  int rewind_floor() const {
    const int folded = !has_folding_ ? 0 : options_.by_row ? n_tokens_ : n_folded_;
    return std::max(folded, window_.shortest(windows_.first()));
  }
  bool has_to_fold() const { return has_folding_ && numbers_.n_accepted > 0; }
  void set_folded();                                         // all committed rows
  void set_length(int n_tokens);                             // sets the length, all of it folded
  void rewind(int n_tokens);                                 // pages stay
  const AppendNumbers& numbers() const { return numbers_; }  // of the next append
  void set_past() { numbers_.n_past = n_tokens_; }

  // --- the append
  bool is_appending() const { return appending_; }
  bool is_appended() const { return appended_; }  // between end_append() and commit, rewind or abort
  bool is_tree() const { return is_tree_; }
  // Whether an append of these rows is computed row by row (StateOptions::by_row); this append; the pending rows.
  bool is_by_row(int rows, bool is_tree) const { return options_.by_row && (is_tree || rows == 1); }
  bool is_by_row() const { return is_by_row(n_rows_, is_tree_); }
  bool pending_is_by_row() const { return pending_is_by_row_; }
  int n_rows() const { return n_rows_; }
  void check_rows(int rows) const;  // throws kInvalid if the rows do not fit the context
  void begin_append(int rows, bool is_tree);
  void end_append();
  // Committed rows whose ops are not all sent: the window of the oldest of them stays.
  void begin_staged(int rows) { n_staged_ += rows; }
  void end_staged(int rows) { n_staged_ -= rows; }
  void abort_append() {
    appending_ = appended_ = false;
    n_staged_ = 0;
  }
  void commit_chain(int keep);
  // Accepts a path of a tree. Returns whether K and V have to be moved. Call end_commit() next.
  bool accept(std::span<const int32_t> path);
  void end_commit();

 private:
  int window_rows(int n_tokens) const;  // rows to append for which take() takes window pages
  int n_spare() const;                  // first pages of windows_ that give_up() may return

  StateOptions options_;
  bool has_folding_;
  Window window_;
  PageList all_, windows_;
  int n_tokens_ = 0;
  int n_folded_ = 0;  // tokens folded into S; the rest of n_tokens_ are pending rows
  int n_staged_ = 0;  // of n_tokens_, the last ones
  bool pending_is_by_row_ = false;
  AppendNumbers numbers_;
  // appending_: between begin_append() and end_append(). appended_: from end_append() until commit, rewind or abort.
  bool appending_ = false, appended_ = false;
  bool is_tree_ = false;
  int n_rows_ = 0, n_chunks_ = 0;
};

}  // namespace lb
