// Session: one mutable token timeline on an engine. Callers pass the whole prefix. The session reuses the part it has
// already computed, computes the rest, and leaves the logits of the last token.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "engine/engine.h"
#include "engine/part_clock.h"
#include "engine/step_rows.h"
#include "engine/token_loop.h"
#include "engine/tree_memory.h"
#include "engine/tree_walk.h"
#include "sampling/sampler.h"
#include "speculation/replay.h"
#include "state/pieces.h"

namespace lb {

// Milliseconds of a speculative step on a device whose tokens the host does not wait for, and of the kernels of its
// parts, which then do not overlap.
struct DraftStepTimes {
  double step_ms, draft_ms, tree_ms, verify_ms, walk_ms, commit_ms;
};

class Session {
 public:
  explicit Session(std::shared_ptr<const Engine> engine);

  const Engine& engine() const { return *engine_; }
  std::span<const int32_t> tokens() const { return tokens_; }
  int context() const { return state_.capacity(); }

  // Makes the timeline equal to ids (not empty). Returns how many leading tokens were reused.
  // between_layers: called within a chunk of more than Executor::kStepRows rows; other sessions of the engine may
  // compute there, in this thread, what is no longer than that. This one must be left alone.
  int sync(std::span<const int32_t> ids, const Interrupted& interrupted = {}, const Progress& progress = {},
           const BetweenLayers& between_layers = {});
  // Waits until the device has computed what was sent to it.
  void wait() { state_.stream().wait(); }
  // [vocab] logits of the last token; valid between sync() and sample().
  std::span<const float> logits();
  // Chooses a token from logits(). Throws when a logit is not finite. On a device the step with this token as input
  // starts at once. A sync() that continues with another token drops that step for free.
  int32_t sample(Sampler& sampler);
  // Log probabilities of a token and of the n_top likeliest. Before sample(): from logits(), any token. After it: the
  // sampled token only, and on a device the sampler must have been made with at least this n_top.
  Logprobs logprobs(int32_t token, int n_top);

  // --- several sessions of one engine: session_together.cpp
  struct Turn {
    Session* session;
    std::span<const int32_t> ids;
  };
  // sync() of different sessions. Where they lack one token each, a pass over the weights computes the row of each, or
  // the tree below it. Returns the rows of these passes. The sessions run no steps ahead then, so that the next pass
  // may be one of all again.
  static int sync_together(std::span<const Turn> turns, const Interrupted& interrupted = {});
  // Times sync_together() per kernel. Throws kUnsupported on the CPU.
  static std::vector<gpu::KernelTime> profile_together(std::span<const Turn> turns,
                                                       const Interrupted& interrupted = {});
  struct Choice {
    Session* session;
    const Sampler* sampler;
  };
  // After it: starts the choices that the next sample() of each session and sampler returns, so that a device chooses
  // for all sessions before the host waits for one. Nothing on the CPU.
  static void start_samples(std::span<const Choice> choices);

  // Natural log probability of ids[i] given ids[..i), for i >= 1. Replaces the timeline.
  std::vector<double> score(std::span<const int32_t> ids, const Interrupted& interrupted = {});

  // The output of the final norm [n, hidden] for the rows of ids that the timeline lacks; makes the timeline equal to
  // ids. Keeps the timeline where ids continue it, so that a long text may come in parts.
  std::vector<float> hidden(std::span<const int32_t> ids, const Interrupted& interrupted = {});

  // --- speculation: session_speculate.cpp
  static constexpr int kMinDraftContext = 16;  // tokens; the costs of a step are measured within it
  // A sync() that adds one token drafts a tree below it, verifies the tree in one append and keeps its logits. While
  // the tokens sampled follow the tree, sync() and sample() compute nothing. Drafts change no token.
  struct DraftCounts {
    int64_t verified = 0;                       // trees
    int64_t drafted = 0;                        // nodes below the roots
    int64_t accepted = 0;                       // nodes that the sampler chose
    std::array<int64_t, kMaxTree> by_length{};  // [n] trees walked to their end, of which n nodes were accepted
  };
  const DraftCounts& draft_counts() const { return draft_counts_; }
  // Whether sync() drafts; true at first where the engine has a drafter.
  void set_drafting(bool on) { drafting_ = on; }
  // A text that the next output is likely to repeat, as a whole or in parts; empty: none.
  void expect(std::span<const int32_t> text);
  // Keeps an output for the drafts of later ones.
  void remember(std::span<const int32_t> output);
  // Drafts from these outputs in place of those of all sessions, and keeps outputs there: how fast an answer comes
  // tells what it was drafted from. Null: those of all sessions again. Nothing where no suffixes are drafted.
  void share_outputs(std::shared_ptr<EarlierOutputs> outputs);
  // Proposes a tree below the next token, in place of the drafter's: parents as in AppendOptions, -1 is that token.
  // Tokens behind the end of the context are left out.
  void suggest(std::span<const int32_t> tokens, std::span<const int32_t> parents);

  // --- benchmarks of speculation
  // For weights whose drafts are never right: of each sum(by_length) trees, by_length[n] accept n tokens along their
  // best path, or as many as it has. Drafting, verifying and sampling cost what they cost; the text means nothing. Not
  // for sampling with masks. Empty: off.
  void replay(std::span<const int64_t> by_length, uint64_t seed);
  // Whether steps with drafts are timed part by part, which slows them down: parts().seconds().
  void time_parts(bool on) { parts_.set_on(on); }
  const PartClock& parts() const { return parts_; }

  // --- a timeline in pieces, for prefix caches
  // Length of the longest prefix of ids that the timeline computed in appends with exactly these ends. Only then are
  // the bits of its state those of a fresh computation.
  int matched_prefix(std::span<const int32_t> ids, std::span<const int32_t> ends) const;
  size_t page_bytes() const { return lb::page_bytes(state_); }
  size_t recurrent_bytes() const { return lb::recurrent_bytes(state_); }
  int prefill_chunk() const { return engine_->options().prefill_chunk; }
  int step_rows() const { return engine_->executor().max_rows; }
  // Copies pages [first, first + count), all of which hold committed tokens.
  void read_pages(int first, int count, std::span<std::byte> to);
  // Copies the recurrent state after the newest token. Folds first, which changes no later bit.
  void read_recurrent(std::span<std::byte> to);
  // Pages [first, first + count), all of which hold committed tokens, without a copy.
  std::unique_ptr<PageRun> share_pages(int first, int count);
  // Whole pages: bytes, or pages of the KV cache.
  using PagePiece = std::variant<std::span<const std::byte>, const PageRun*>;
  struct Pieces {
    int first_page = 0;                    // the timeline keeps its own pages before this one
    std::vector<PagePiece> pages;          // the pages from first_page on
    std::span<const std::byte> recurrent;  // the recurrent state after the last token
  };
  // Makes the timeline ids as if computed in appends with these ends, which ascend to ids.size(). matched_prefix() must
  // cover the pages before first_page.
  void assemble(std::span<const int32_t> ids, std::span<const int32_t> ends, const Pieces& pieces);

  // --- the KV cache, which all sessions of the engine share: session_pages.cpp
  // Takes pages for a timeline of n_tokens, after swapping in. False: too few are free, and nothing changed.
  bool reserve(int n_tokens);
  int n_pages() const { return static_cast<int>(state_.pages().size()); }
  // Copies the pages to host memory and gives them back. The next call that needs them, such as reserve(), swaps in.
  void swap_out();
  bool is_swapped_out() const { return state_.is_swapped_out(); }
  // Makes the timeline that of another session of the engine, to the bit. They share its pages.
  void fork(Session& from);

  std::vector<std::byte> save();
  void load(std::span<const std::byte> bytes, const std::string& where);
  void reset();

  // --- one append by hand: speculation, tests
  struct AppendOptions {
    std::span<const int32_t> parents{};    // [rows] a tree; empty: a chain
    std::span<const int32_t> positions{};  // [3, rows]; empty: text positions
    std::span<const int> taps{};           // see Taps
  };
  struct AppendResult {
    std::vector<float> logits;  // [rows, vocab]
    std::vector<float> taps;    // [taps, rows, hidden]
  };
  // Computes rows after the timeline without keeping them. commit() keeps a path; any other call drops the rows.
  AppendResult append(std::span<const int32_t> ids, const AppendOptions& options, const Interrupted& interrupted = {});
  // Seconds to compute a chain of rows and the logits of its last n_logits rows, without copying them to the host.
  double time_append(std::span<const int32_t> ids, int n_logits, const Interrupted& interrupted = {});
  // The work of time_append(), timed per kernel. Throws kUnsupported on the CPU.
  std::vector<gpu::KernelTime> profile_append(std::span<const int32_t> ids, int n_logits,
                                              const Interrupted& interrupted = {});
  // Times steps of `rows` rows after ids: the mean of n, then one by its parts. The last of ids stands for the root.
  DraftStepTimes time_draft_step(std::span<const int32_t> ids, int rows, int n);
  void commit(std::span<const int32_t> path);  // rows of the last append to keep, from the root
  void rewind(int n_tokens);                   // to any length from rewind_floor() to the present one
  int rewind_floor() const { return state_.rewind_floor(); }

  // How tokens are decoded: "graph", or the megakernel's schedule. Empty on the CPU and before the first graph.
  std::string decode_path() const { return loop_ == nullptr ? "" : loop_->name(); }
  // Time stamps of the last decoded token's step; empty unless the megakernel made it. Throws when the pack was built
  // without time stamps.
  Timeline timeline();

 private:
  using Work = std::function<void()>;
  enum WithoutDrafts { kWithoutDrafts };
  Session(std::shared_ptr<const Engine> engine, WithoutDrafts);

  // --- session.cpp
  // Computes ids[tokens_.size()..) in chunks that end at multiples of the chunk size. after_chunk finds the chunk's
  // final hidden rows in the executor's workspace.y. between_layers: as in sync().
  using AfterChunk = std::function<void(const Executor& executor, int first, int rows)>;
  void prefill(std::span<const int32_t> ids, const Interrupted& interrupted, const AfterChunk& after_chunk,
               const BetweenLayers& between_layers = {});
  void forward(std::span<const int32_t> ids, std::span<const int32_t> positions, const Tree& tree,
               const Interrupted& interrupted, const Taps* taps, const SparseBlocks* sparse = nullptr);
  // The inputs of an append's rows, in the stream's memory.
  struct RowInputs {
    int32_t *tokens, *positions, *parents;  // positions: [3, rows]
    uint64_t* ancestors;
  };
  RowInputs inputs_of(const Executor& executor, bool is_tree) const;
  // Computes an append whose inputs `fill` sends to the stream.
  void run_rows(int rows, bool is_tree, const std::function<void(Stream&, const RowInputs&)>& fill,
                const Interrupted& interrupted, const Taps* taps, const SparseBlocks* sparse = nullptr);
  // The buffers of a prompt's chunk [first, end) with block-sparse attention; null: its attention is dense.
  const SparseBlocks* sparse_blocks_of(int first, int end) const;
  // Logits [rows, vocab] of rows [row, row + rows) of the last forward pass, in the stream's memory.
  void head(const Executor& executor, int row, int rows, float* logits) const;
  // The same on the host, of at most kLogitRows rows.
  void download_head(const Executor& executor, int row, int rows, float* logits);
  void add_tokens(std::span<const int32_t> ids);  // the ids of one append, all of them kept
  void check_idle() const;                        // throws between the layers of its own prompt
  void truncate(int n);
  void truncate_tokens(int n);

  // --- session_together.cpp
  bool lacks_row(std::span<const int32_t> ids, const Interrupted& interrupted);
  static int run_together(std::span<const Turn> turns, const Interrupted& interrupted);
  static std::vector<Segment> choose_segments(std::span<const Turn> turns);
  static std::vector<uint64_t> shape_of(std::span<const Turn> turns, std::span<const Segment> segments, int rows);
  static void begin_segments(std::span<const Turn> turns, std::span<Segment> segments, int rows);
  void choose_rows(int32_t root, int max_rows, const Company& beside);
  static void send_heads(std::span<const Turn> turns, std::span<const Segment> segments, int rows);
  std::optional<TokenLoop::RowChoice> choice_of_row(const Sampler& sampler);
  float* own_logits();
  void end_turn();

  // --- session_append.cpp
  void check_append(std::span<const int32_t> ids, const AppendOptions& options) const;
  // Computes an append by hand that check_append() accepted. The caller has dropped the step and locked the executor.
  void run_append(std::span<const int32_t> ids, const AppendOptions& options, const Interrupted& interrupted,
                  const Taps* taps);
  // Calls `measure` with the work that time_append() and profile_append() time.
  void measure_append(std::span<const int32_t> ids, int n_logits, const std::function<void(const Work&)>& measure,
                      const Interrupted& interrupted);

  // --- session_decode.cpp
  // Origin of a step's AppendNumbers: uploaded by the host, or counted up on the device by NextToken.
  enum class NumbersFrom { kHost, kDevice };
  // Throws when a logit is infinite or NaN; n_tokens precede it.
  void check_finite(std::span<const float> logits, size_t n_tokens) const;
  int32_t sample_in_loop(Sampler& sampler);
  void start_step(NumbersFrom from, bool waits_for_mask);
  bool adopt_step(std::span<const int32_t> ids);  // commits the pending step if it computes the last of ids
  void drop_step();
  void forget_sampler();
  void drop_choices();
  void settle_step_rows();  // after plain steps, before anything else reads or appends to the state
  void abort_step();
  void empty_if_step_lost(const Work& work);
  void empty_timeline();

  // --- session_speculate.cpp
  bool drafts() const;  // the next sync() may verify a tree
  bool extends_by_one(std::span<const int32_t> ids) const;
  bool adopt_tree(std::span<const int32_t> ids);   // the last of ids is the root of the pending tree
  bool follow_tree(std::span<const int32_t> ids);  // the last of ids is a child of the node reached
  bool verify_draft(std::span<const int32_t> ids, const Interrupted& interrupted);
  // Drafts below the root and starts the pass. has_draft: the draft model's candidates are there.
  bool start_tree(int32_t root, bool has_draft, const Interrupted& interrupted);
  bool wants_draft();
  int draft_room() const;
  Draft propose_by_suffix(int32_t root, int max_rows);
  bool propose_by_model(int32_t root, int max_rows);  // false: its block would not fit
  void start_draft(int32_t root, int max_rows);
  void send_draft(int depth);
  int draft_depth(int max_rows) const;
  int max_tree(int max_rows, int depth) const;
  void grow_tree(int max_rows, int rows);
  Draft grown_tree(int max_rows);
  void upload_tree(Stream& stream, const RowInputs& to);
  void start_growing(int max_rows);
  void know_tree();
  void read_tree();
  bool can_draft_ahead();
  AcceptPath accepted_by_device() const;
  void start_walk(const Sampler& sampler, const AcceptPath& accept);
  void choose_from_row(const Sampler& sampler);
  bool start_choice_in_tree(const Sampler& sampler);
  StepCosts measure_step_costs();
  double time(int n, const Work& work, const Work& before = {});
  void time_prefill(int rows, const Work& work);  // work computes so many rows of the sequence
  int max_tree_rows() const;
  void enter_row(int row);
  void walk_on_device(const Sampler& sampler);
  void start_next(const Sampler& sampler, bool has_draft);
  bool propose(int32_t root, int max_rows, bool has_draft, const Company& beside = {0, 0});
  void end_walk(bool is_whole = false);  // commits the path; is_whole: the token after it was not in the tree
  int32_t sample_in_tree(Sampler& sampler);

  // --- session_pages.cpp
  void with_pages(int first, int count, const Work& work);

  // --- session_snapshot.cpp
  void take_pieces(const Pieces& pieces);
  void check_pieces(int n_tokens, int n_pages, int n_matched, const Pieces& pieces) const;

  std::shared_ptr<const Engine> engine_;
  Promise::Kept kept_{engine_->promise()};  // has the memory that the plan promised
  const uint64_t number_;                   // no other session of the process has it
  SequenceState state_;
  RecordedAppends recorded_;
  std::vector<int32_t> positions_;  // [3, max_rows] of the append in progress

  bool is_computing_ = false;         // a prompt's chunk, between whose layers other sessions compute
  std::vector<int32_t> tokens_;       // committed
  std::vector<int32_t> append_ends_;  // of the appends that computed tokens_, up to the first not kept whole

  // The last append by hand, until it is committed or superseded.
  std::vector<int32_t> appended_;          // [rows] ids
  std::vector<int32_t> appended_parents_;  // [rows]; empty: a chain
  bool appended_is_text_ = false;          // a chain at text positions, as prefill() computes it

  // Where the logits of tokens_.back() are, if there are any: in logits_, in the loop, or at row_logits_.
  enum class LogitsIn { kHost, kLoop, kRow };
  std::vector<float> logits_;  // [vocab]
  bool has_logits_ = false;
  LogitsIn logits_in_ = LogitsIn::kHost;
  const float* row_logits_ = nullptr;  // [vocab] in the stream's memory
  bool runs_ahead_ = true;             // sample() starts the next step: no other session waits to share it

  std::unique_ptr<StepRows> step_rows_;  // null without a draft model, and on the CPU, which has no plain steps
  // Decoding on a device. A step is pending from start_step() until sync() adopts or anything else drops it.
  std::unique_ptr<TokenLoop> loop_;  // null: tokens are sampled on the host
  uint64_t loop_sampler_ = 0;        // Sampler::version() whose state the loop has; 0: none
  int32_t sampled_ = -1;             // the token sampled last, input of the pending step; -1: none
  bool step_pending_ = false;        // that step has started
  // The step ends with its logits. The next sample() sends the mask and has the token chosen.
  bool choice_waits_for_mask_ = false;
  bool was_masked_ = false;      // the choice of sampled_
  bool choice_started_ = false;  // from the row of the current logits

  // Speculation. Tokens of the path are in tokens_, but not committed before end_walk().
  TreeWalk walk_;
  bool tree_pending_ = false;  // the pass over walk_'s tree has started; its root is sampled_, not yet in tokens_
  bool device_walks_ = false;  // the loop chooses the tokens of the walk
  bool drafting_ = false;
  bool drafts_pay_ = false;                  // on a device: the next token waits for the host, which may draft below it
  Draft suggested_{};                        // rows == 0: none
  std::unique_ptr<SuffixDrafter> suffix_;    // null where the engine drafts no suffixes
  std::shared_ptr<EarlierOutputs> outputs_;  // of suffix_
  int n_indexed_ = 0;                        // leading tokens_ that suffix_ holds, and behind them the last root
  int32_t indexed_root_ = -1;
  std::optional<StepWidth> width_;
  bool width_chose_ = false;             // the tree in walk_
  int sent_depth_ = 0;                   // of the draft whose candidates are in tree_
  std::unique_ptr<Memory> tree_memory_;  // null where the engine does not draft
  TreeMemory tree_;
  int tree_row_ = 0;           // of the current logits
  bool tree_is_known_ = true;  // false: the device grows the tree; walk_ has its root and its number of rows
  // The device has accepted the path of its walk and drafts below its end: only this path may be followed, and the
  // draft model's K and V lie where its commit would move them.
  bool draft_is_ahead_ = false;
  std::array<std::unique_ptr<Recording>, kMaxTree> draft_recordings_;  // of the draft model, by depth
  DraftCounts draft_counts_;
  std::optional<Replay> replay_;
  PartClock parts_;
};

}  // namespace lb
