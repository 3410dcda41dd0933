// Session: one mutable token timeline on an engine. Callers hand over the whole prefix; the session keeps what it
// already holds, computes the rest, and leaves the logits of the last token.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sampling/sampler.h"
#include "engine/engine.h"
#include "engine/recorded_appends.h"
#include "engine/token_loop.h"
#include "state/pieces.h"

namespace lb {

// Asked between layers and between chunks; true stops the work with kCancelled and leaves the session usable.
using Interrupted = std::function<bool()>;
// Called after every prefill chunk with tokens done and tokens to do.
using Progress = std::function<void(int done, int total)>;

class Session {
 public:
  explicit Session(std::shared_ptr<const Engine> engine);

  const Engine& engine() const { return *engine_; }
  std::span<const int32_t> tokens() const { return tokens_; }
  int context() const { return state_.capacity(); }

  // Makes the timeline equal to ids (not empty). Returns how many of them it already held.
  int sync(std::span<const int32_t> ids, const Interrupted& interrupted = {}, const Progress& progress = {});
  // [vocab] after sync() and before sample(); of the last token.
  std::span<const float> logits();
  // A token from logits(); refuses logits that are not finite. On a device the step with this token starts at once, and
  // costs nothing where the next sync() wants another.
  int32_t sample(Sampler& sampler);
  // Of the token sample() gave and the n_top likeliest, which on a device the sampler must have been made for.
  Logprobs logprobs(int32_t token, int n_top);

  // Natural log probability of ids[i] given ids[..i), for i >= 1. Replaces the timeline.
  std::vector<double> score(std::span<const int32_t> ids, const Interrupted& interrupted = {});

  // --- a timeline in pieces: for prefix caches
  // How many of ids the timeline holds such that it computed them in appends with these ends, and in no others: the
  // state there has the bits that computing ids with these ends anew would give.
  int held(std::span<const int32_t> ids, std::span<const int32_t> ends) const;
  size_t page_bytes() const { return lb::page_bytes(state_); }
  size_t recurrent_bytes() const { return lb::recurrent_bytes(state_); }
  int prefill_chunk() const { return engine_->executor().max_rows; }
  // Pages that hold committed tokens.
  void read_pages(int first, int count, std::span<std::byte> to);
  // At the newest token. Folds, which changes no bit of what follows.
  void read_recurrent(std::span<std::byte> to);
  // Makes the timeline ids as they come from appends with these ends, the last of which ends them. The timeline holds
  // the pages before first_page (see held); the pages from there follow, whole ones piece by piece, then the recurrent
  // state after the last of ids.
  struct Pieces {
    int first_page = 0;
    std::vector<std::span<const std::byte>> pages;
    std::span<const std::byte> recurrent;
  };
  void assemble(std::span<const int32_t> ids, std::span<const int32_t> ends, const Pieces& pieces);

  std::vector<std::byte> save();
  void load(std::span<const std::byte> bytes, const std::string& where);
  void reset();

  // --- one append by hand: speculation, tests
  struct AppendOptions {
    std::span<const int32_t> parents{};    // tree; empty: chain
    std::span<const int32_t> positions{};  // [3, rows]; empty: text positions
    std::span<const int> taps{};           // see Taps
  };
  struct AppendResult {
    std::vector<float> logits;  // [rows, vocab]
    std::vector<float> taps;    // [taps, rows, hidden]
  };
  // Computes rows after the timeline without keeping them; follow with commit() or nothing.
  AppendResult append(std::span<const int32_t> ids, const AppendOptions& options, const Interrupted& interrupted = {});
  // Measures instead: seconds of a chain of rows and the logits of its last n_logits, done but not brought to the host.
  double time_append(std::span<const int32_t> ids, int n_logits, const Interrupted& interrupted = {});
  // The same by kernel. Refused on the CPU.
  std::vector<gpu::KernelTime> profile_append(std::span<const int32_t> ids, int n_logits,
                                              const Interrupted& interrupted = {});
  void commit(std::span<const int32_t> path);  // rows of the last append to keep
  void rewind(int n_tokens);
  // How tokens are decoded: "graph", or the schedule of the megakernel; empty on the CPU and before the first graph.
  std::string decode_path() const { return loop_ == nullptr ? "" : loop_->name(); }
  // Of the last decoded token, where a megakernel made it, empty otherwise. Throws where its pack takes no stamps.
  Timeline timeline();
  int rewind_floor() const { return state_.rewind_floor(); }

 private:
  using Work = std::function<void()>;
  void check_append(std::span<const int32_t> ids, const AppendOptions& options) const;
  // An append by hand, checked; the caller has dropped the step and holds the executor.
  void compute(std::span<const int32_t> ids, const AppendOptions& options, const Interrupted& interrupted,
               const Taps* taps);
  // Hands `measure` the work of time_append() and profile_append().
  void measured(std::span<const int32_t> ids, int n_logits, const std::function<void(const Work&)>& measure,
                const Interrupted& interrupted);
  void forward(std::span<const int32_t> ids, std::span<const int32_t> positions, const Tree& tree,
               const Interrupted& interrupted, const Taps* taps);
  // Computes ids[state length ..) in chunks that end at multiples of the chunk size; after_chunk sees the rows in ws.y.
  void extend(std::span<const int32_t> ids, const Interrupted& interrupted,
              const std::function<void(int first, int rows)>& after_chunk);
  enum class NumbersFrom { kHost, kDevice };  // of an append
  int32_t sample_in_loop(Sampler& sampler);
  void step_ahead(NumbersFrom from, bool waits_for_mask);
  bool adopt_step(std::span<const int32_t> ids);  // the step on its way is the one that ids go on with
  void drop_step();
  void drop_failed_step();
  void in_loop(const Work& work);
  void forget();
  void head(int row, int rows);  // of the last forward pass, at most kLogitRows: the executor's logits [rows, vocab]
  void head(int row, int rows, float* logits);  // the same, brought to the host
  void shorten_to(int n);
  void add_tokens(std::span<const int32_t> ids);  // one append, kept whole
  void cut_tokens(int n);
  void check_ids(std::span<const int32_t> ids) const;

  std::shared_ptr<const Engine> engine_;
  SequenceState state_;
  RecordedAppends recorded_;
  std::vector<int32_t> tokens_;      // committed
  std::vector<int32_t> ends_;        // of the appends they came from, up to the first that was not kept whole
  std::vector<int32_t> appended_;    // of the last append(), until it is committed or superseded
  bool is_text_ = false;             // appended_ is a chain at the positions of text, as extend() computes it
  std::vector<int32_t> parents_;     // of appended_; empty: a chain
  std::vector<float> logits_;        // [vocab]
  std::vector<int32_t> positions_;   // of an append
  std::unique_ptr<TokenLoop> loop_;  // null: tokens are chosen on the host
  uint64_t chooser_ = 0;             // version of the sampler whose state the loop holds; 0: none
  int32_t ahead_ = -1;               // the token of the step on its way, -1: none
  bool stepped_ = false;             // it has been started
  bool waits_for_mask_ = false;      // and does not end by choosing a token
  bool logits_in_loop_ = false;      // and not in logits_
  bool has_logits_ = false;          // logits_ are those of tokens_.back()
};

}  // namespace lb
