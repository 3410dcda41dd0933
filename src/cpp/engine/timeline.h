// Timeline: the tokens of one sequence and the state after them: appends, commits, rewinds, pages and pieces. It does
// not depend on samplers or drafts. Call Session::at_rest() before changing the timeline: it ends work that decoding
// has begun.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "engine/engine.h"
#include "engine/step_rows.h"
#include "state/pieces.h"

namespace lb {

class Timeline {
 public:
  explicit Timeline(std::shared_ptr<const Engine> engine);

  const Engine& engine() const { return *engine_; }
  EngineTurn& turn() const { return engine_->buffers().turn; }
  SequenceState& state() { return state_; }
  Stream& stream() const { return state_.stream(); }
  // Waits until the device has completed all work sent to it. The caller need not have the turn.
  void wait() const;
  // The ring of the tapped rows of plain steps on each shard; empty without a draft model, and on the CPU, which has no
  // plain steps.
  std::span<const StepRing> step_rings() const {
    return step_rows_ ? step_rows_->rings() : std::span<const StepRing>();
  }
  uint64_t number() const { return number_; }  // unique in the process
  bool has_images() const { return !images_.empty(); }
  // Position of a text row after `slot` tokens: an image takes fewer positions than it has tokens (M-RoPE).
  int32_t text_position(int slot) const;

  std::span<const int32_t> tokens() const { return tokens_; }
  int context() const { return state_.capacity(); }
  // Changes with each append, commit and rewind: logits belong to one revision.
  uint64_t revision() const { return revision_; }
  // Leading tokens that have not changed since mark_unchanged(), for an index of the text.
  int n_unchanged() const { return n_unchanged_; }
  void mark_unchanged() { n_unchanged_ = static_cast<int>(tokens_.size()); }
  bool extends_by_one(std::span<const int32_t> ids) const;
  void check_idle() const;  // throws if called between the layers of this timeline's own prompt

  // --- appends
  // Computes ids[tokens().size()..) in chunks that end at multiples of the chunk size. after_chunk reads the chunk's
  // final hidden rows from the pass buffers' workspace.y. between_layers: as in Session::sync().
  using AfterChunk = std::function<void(const PassBuffers& buffers, int first, int rows)>;
  void prefill(std::span<const int32_t> ids, const Interrupted& interrupted, const AfterChunk& after_chunk,
               const BetweenLayers& between_layers = {});
  // The inputs of an append's rows, in a shard's memory.
  struct RowInputs {
    int32_t *tokens, *positions, *parents;  // positions: [3, rows]
    uint64_t* ancestors;
    int32_t* last_seen = nullptr;  // [rows] of the pass buffers
  };
  struct Rows {
    int n = 0;
    bool is_tree = false;
    std::span<const RowInputs> inputs{};  // [shards]; empty: the pass buffers'
    const Taps* taps = nullptr;
    bool is_sparse = false;  // block-sparse attention; else dense
    std::span<const GivenRows> given{};
    bool sees_images = false;  // RowInputs::last_seen is filled
  };
  // Computes an append whose inputs `fill` sends to the stream of a shard. The append then awaits a commit.
  using Fill = std::function<void(int shard, const RowInputs& to)>;
  void run(const Rows& rows, const Fill& fill, const Interrupted& interrupted);
  // Logits [rows, vocab] of rows [row, row + rows) of the last forward pass, on each shard that computes logits.
  // logits: [shards], where to; empty: to its pass buffers'.
  void head(const PassBuffers& buffers, int row, int rows, std::span<float* const> logits = {}) const;
  // Copies the logits of at most kLogitRows rows to the host.
  void download_head(const PassBuffers& buffers, int row, int rows, float* logits) const;
  // Throws when a logit is infinite or NaN; n_tokens precede it.
  void check_finite(std::span<const float> logits, size_t n_tokens) const;

  // Commits all rows of the append. ids: the rows' tokens.
  void commit_rows(std::span<const int32_t> ids);
  // Appends the token of a tree's row to tokens(). commit_path() later commits the rows of the path.
  void add_path_token(int32_t token);
  // n_to_move: as in SequenceState::commit().
  void commit_path(std::span<const int32_t> path, int n_to_move) { state_.commit(path, n_to_move); }
  // Ends an append that failed half-way.
  void abort();

  // --- a device's plain steps: appends of one row
  // Origin of a step's AppendNumbers: uploaded by the host, or counted up on the device by NextToken.
  enum class NumbersFrom { kHost, kDevice };
  void begin_step(NumbersFrom from);
  void end_step() { state_.end_append(); }
  void commit_step(int32_t token) { commit_rows({&token, 1}); }
  void drop_step() { state_.commit_chain(0); }
  // Call before anything other than a plain step reads or appends to the state.
  void settle_steps();

  // --- one append by hand: timeline_append.cpp
  struct AppendOptions {
    std::span<const int32_t> parents{};    // [rows] a tree; empty: a chain
    std::span<const int32_t> positions{};  // [3, rows]; empty: text positions
    std::span<const int> taps{};           // see Taps
  };
  struct AppendResult {
    std::vector<float> logits;  // [rows, vocab]
    std::vector<float> taps;    // [taps, rows, hidden]
  };
  // Computes rows after the tokens without keeping them. commit() keeps a path; any other call drops the rows.
  AppendResult append(std::span<const int32_t> ids, const AppendOptions& options, const Interrupted& interrupted = {});
  void check_append(std::span<const int32_t> ids, const AppendOptions& options) const;
  // append() without its logits. The caller has the turn.
  void compute(std::span<const int32_t> ids, const AppendOptions& options, const Interrupted& interrupted,
               const Taps* taps = nullptr);
  void check_committed(const char* action) const;  // throws if an append awaits a commit
  void forget_append() { appended_.ids.clear(); }  // another append supersedes it
  void commit(std::span<const int32_t> path);      // rows of the last append to keep, from the root
  void rewind(int n_tokens);                       // to any length from rewind_floor() to the present one
  // Takes the turn: sequences that another thread computes may take pages of the window from this one.
  int rewind_floor() const;
  // Drops the tokens after the first n, and more tokens if recurrent layers cannot step back that far.
  void truncate(int n);
  void reset();
  // As reset(), after a step whose results are lost.
  void lose();

  // --- the KV cache, which all sessions of the engine share, and pieces for prefix caches: timeline_pages.cpp
  // As in Session.
  bool reserve(int n_tokens);
  int room() const;  // SequenceState::room()
  int n_pages() const { return static_cast<int>(state_.pages().size()); }
  // Copies the pages to host memory and releases them. The next call that needs them, such as reserve(), swaps in.
  void swap_out();
  bool is_swapped_out() const { return state_.is_swapped_out(); }
  void fork(Timeline& from);

  // The shortest prefix of the tokens to which assemble() can return without pieces.
  int own_floor() const;
  // Length of the longest prefix of ids whose state has the bits of a fresh computation: that was computed in appends
  // with exactly these ends, or in any appends where rows are invariant.
  int matched_prefix(std::span<const int32_t> ids, std::span<const int32_t> ends) const;
  size_t page_bytes() const { return lb::page_bytes(state_); }
  size_t recurrent_bytes() const { return lb::recurrent_bytes(state_); }
  // Bytes of the windows at any length, at most, and after the newest token.
  size_t max_window_bytes() const { return state_.max_window_pages() * window_page_bytes(state_); }
  size_t window_bytes() const;
  // Pages [first, first + count), all of which hold committed tokens: copied, or shared.
  void check_pages(int first, int count) const;
  void read_pages(int first, int count, std::span<std::byte> to);
  std::unique_ptr<PageRun> share_pages(int first, int count);
  // The pages that hold the window after the newest token: copied, or shared; null: no layer has a window.
  void read_windows(std::span<std::byte> to);
  std::unique_ptr<PageRun> share_windows();
  // Copies the recurrent state after the newest token. Folds first, which does not change later results.
  std::shared_ptr<Memory> read_recurrent();
  // Whole pages: as bytes, or as pages of the KV cache.
  using PagePiece = std::variant<std::span<const std::byte>, const PageRun*>;
  struct Pieces {
    int first_page = 0;                    // the timeline keeps its own pages before this one
    std::vector<PagePiece> pages;          // the pages from first_page on
    PagePiece windows;                     // the pages that hold the window after the last token
    std::span<const std::byte> recurrent;  // the recurrent state after the last token
  };
  // Makes the tokens ids as if computed in appends with these ends, which ascend to ids.size(). matched_prefix() must
  // cover the pages before first_page. From own_floor() on, a prefix of the tokens needs no pieces.
  void assemble(std::span<const int32_t> ids, std::span<const int32_t> ends, const Pieces& pieces);
  std::vector<std::byte> save();
  void load(std::span<const std::byte> bytes, const std::string& where);

 private:
  // The last append by hand, until it is committed or superseded.
  struct Appended {
    std::vector<int32_t> ids;      // [rows]; empty: none
    std::vector<int32_t> parents;  // [rows]; empty: a chain
    bool is_chain = false;
    bool is_text = false;  // at text positions
  };
  class HostRows;
  struct StagedChunk;
  void forward(std::span<const int32_t> ids, std::span<const int32_t> positions, const Tree& tree, Rows rows,
               const Interrupted& interrupted);
  // rows on a shard, whose only segment is `segment`.
  Append append_on(int shard, const Rows& rows, const RowInputs& in, Segment& segment);
  void prefill_in_stages(std::span<const int32_t> ids, const Interrupted& between, const AfterChunk& after_chunk);
  void run_stages(std::span<const std::unique_ptr<StagedChunk>> stages, const Interrupted& between);
  void begin_stage(int stage, StagedChunk& chunk);
  bool is_sparse_chunk(int first, int end) const;
  void add_tokens(std::span<const int32_t> ids);  // the ids of one append, all of them kept
  void grow_text(int n);
  // Finds the images in ids, which extend the tokens.
  void place_images(std::span<const int32_t> ids);
  // The end of the append of ids that begins at `first`.
  int chunk_end(std::span<const int32_t> ids, int first) const;
  // [rows] Attention::last_seen of the append from `first` on.
  std::vector<int32_t> rows_seen(int first, int rows) const;
  // Writes the positions of ids[first..first + rows) to positions_.
  void place_rows(std::span<const int32_t> ids, int first, int rows);
  void truncate_tokens(int n);
  void ready_pages();
  void take_pieces(int n_pages, const Pieces& pieces);
  bool is_own_prefix(int n_tokens, const Pieces& pieces) const;
  void check_pieces(int n_tokens, int n_pages, int n_matched, const Pieces& pieces) const;

  std::shared_ptr<const Engine> engine_;
  std::deque<Promise::Kept> kept_;  // this timeline's share of the promised memory of each shard
  const uint64_t number_;
  SequenceState state_;
  std::unique_ptr<StepRows> step_rows_;
  RecordedAppends recorded_;
  std::vector<int32_t> positions_;  // [3, max_rows] of the append in progress
  // [shards] of the append in progress
  std::vector<Segment> segments_;
  std::vector<Append> appends_;
  std::vector<RowInputs> inputs_;
  bool is_computing_ = false;    // in a prompt chunk, between whose layers other sessions compute
  std::vector<int32_t> tokens_;  // committed, or on the path of an uncommitted tree
  // Images of the tokens, or of the prompt in progress, oldest first.
  struct PlacedImage {
    int slot;  // of its first row
    ImageGrid grid;
  };
  std::vector<PlacedImage> images_;
  std::vector<int32_t> append_ends_;  // of the appends that computed tokens_, up to the first not kept in full
  int n_text_ = 0;                    // leading tokens known to be at the positions that the tokens imply
  int n_unchanged_ = 0;
  uint64_t revision_ = 0;
  Appended appended_;
};

}  // namespace lb
