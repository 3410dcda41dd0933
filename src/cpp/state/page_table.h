// PageTable: host-side bookkeeping of one sequence, common to all shards: its pages in the pool, how many tokens are
// committed and folded, and the append in progress. It touches no device memory: SequenceState uploads the changes.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "ops/append.h"
#include "state/layer_shape.h"
#include "state/page_pool.h"

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

class PageTable {
 public:
  // The last line of errors about a full pool.
  static constexpr const char* kMakeRoom = ". Reset or swap out other sessions, or load the model with more kv_tokens";
  static constexpr int32_t kOwnPage = -1;  // for set_pages()

  // has_folding: any layer folds().
  PageTable(const StateOptions& options, bool has_folding, std::shared_ptr<PagePool> pool);
  ~PageTable() { give_back(0); }
  PageTable(const PageTable&) = delete;
  PageTable& operator=(const PageTable&) = delete;

  // --- pages
  const std::shared_ptr<PagePool>& pool() const { return pool_; }
  std::span<const int32_t> pages() const { return pages_; }      // in order
  std::span<const int32_t> entries() const { return entries_; }  // [pages of the capacity] as uploaded
  int room() const;  // rows that still fit after the committed ones, in the capacity and in own plus free pages
  // Pages by which a sequence grows.
  struct Growth {
    std::vector<int32_t> fresh;  // taken from the pool
    bool must_copy;              // the first fresh page replaces the shared page that holds the next row
    int first_changed;           // entry
  };
  // Takes pages for n_tokens tokens, and for rows_ahead more if the pool has enough. Pages that will be written must be
  // exclusive to this sequence: only the last page with committed rows can be shared and need a copy. None: the pool
  // has too few pages; nothing changed.
  std::optional<Growth> take(int n_tokens, int rows_ahead);
  // Adds the pages. The caller has copied the shared page, if any.
  void grow(const Growth& growth);
  void give_back(int first_page);
  bool take_back(int n);  // takes n pages for a sequence that has none
  // See SequenceState::set_pages().
  void set_pages(int first_page, std::span<const int32_t> pages);
  // Becomes a copy of another sequence of the same pool, sharing its pages. Copies the uploaded entries too.
  void share(const PageTable& from);
  // Entries [first, end) to upload, from first_page on. Stale entries beyond the pages may stay: a kernel may look them
  // up, but accesses no row there.
  struct Range {
    int first, end;
  };
  Range update_entries(int first_page);

  // --- lengths
  int n_tokens() const { return n_tokens_; }  // committed
  int rewind_floor() const { return !has_folding_ ? 0 : options_.by_row ? n_tokens_ : n_folded_; }
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
  void abort_append() { appending_ = appended_ = false; }
  void commit_chain(int keep);
  // Accepts a path of a tree. Returns whether K and V have to be moved. Call end_commit() next.
  bool accept(std::span<const int32_t> path);
  void end_commit();

 private:
  StateOptions options_;
  bool has_folding_;
  std::shared_ptr<PagePool> pool_;
  std::vector<int32_t> pages_;    // of the pool
  std::vector<int32_t> entries_;  // [pages of the capacity] as uploaded; entries beyond pages_ are stale
  int n_tokens_ = 0;
  int n_folded_ = 0;  // tokens folded into S; the rest of n_tokens_ are pending rows
  bool pending_is_by_row_ = false;
  AppendNumbers numbers_;
  // appending_: between begin_append() and end_append(). appended_: from end_append() until commit, rewind or abort.
  bool appending_ = false, appended_ = false;
  bool is_tree_ = false;
  int n_rows_ = 0, n_chunks_ = 0;
};

}  // namespace lb
