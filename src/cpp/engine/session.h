// Session: one mutable token timeline on an engine. Callers pass the whole prefix. The session reuses the part it has
// already computed, computes the rest, and leaves the logits of the last token. Its parts: Timeline (tokens and state),
// Decode (the next token), Speculator (trees of drafted tokens). Pass computes several sessions together.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/decode.h"
#include "engine/engine.h"
#include "engine/speculator.h"
#include "engine/timeline.h"
#include "engine/token_loop.h"
#include "sampling/sampler.h"

namespace lb {

class Session {
 public:
  static constexpr int kMinDraftContext = 16;  // tokens; the costs of a step are measured within it

  // The first session that drafts measures the engine's step costs.
  explicit Session(std::shared_ptr<const Engine> engine);

  const Engine& engine() const { return timeline_.engine(); }
  const Timeline& timeline() const { return timeline_; }
  // Ends all work that runs ahead and returns the timeline, for manual appends, rewinds, pieces and snapshots. Logits
  // stay until the tokens change.
  Timeline& at_rest();
  Speculator& speculator() { return speculator_; }
  const Speculator& speculator() const { return speculator_; }

  // Makes the timeline equal to ids (not empty). Returns how many leading tokens were reused.
  // A sync() that adds one token drafts a tree below it, verifies the tree in one append and keeps its logits. While
  // the sampled tokens follow the tree, sync() and sample() run no forward pass. Drafts never change the tokens.
  // between_layers: called within a chunk of more than PassBuffers::kStepRows rows; there, in this thread, other
  // sessions of the engine may compute appends of up to kStepRows rows. This session must not be used.
  int sync(std::span<const int32_t> ids, const Interrupted& interrupted = {}, const Progress& progress = {},
           const BetweenLayers& between_layers = {});
  // Waits until the device has completed all work sent to it.
  void wait() { timeline_.wait(); }
  // Waits until the device has chosen the token that sample() returns next, if it has begun to. Unlike wait(), it does
  // not wait for other sessions' passes.
  void wait_for_choice() { decode_.wait_for_choice(); }
  // [vocab] logits of the last token; valid between sync() and sample().
  std::span<const float> logits() {
    check_not_lost();
    return decode_.logits();
  }
  // Chooses a token from logits(). Throws when a logit is not finite. On a GPU the step with this token as input starts
  // immediately; a sync() with another token drops that step at no cost.
  int32_t sample(Sampler& sampler) {
    check_not_lost();
    return decode_.sample(sampler);
  }
  // Log probabilities of a token and of the n_top likeliest. Before sample(): from logits(), any token. After it: the
  // sampled token only, and on a device the sampler must have been made with at least this n_top.
  Logprobs logprobs(int32_t token, int n_top) { return decode_.logprobs(token, n_top); }

  // Natural log probability of ids[i] given ids[..i), for i >= 1. Replaces the timeline.
  std::vector<double> score(std::span<const int32_t> ids, const Interrupted& interrupted = {});
  // The output of the final norm [n, hidden] for the rows of ids that the timeline lacks; makes the timeline equal to
  // ids. If ids extend the timeline, it is kept, so a long text may be passed in parts.
  std::vector<float> hidden(std::span<const int32_t> ids, const Interrupted& interrupted = {});

  // Takes pages for a timeline of n_tokens, after swapping in. False: too few pages are free; nothing changed.
  bool reserve(int n_tokens) { return timeline_.reserve(n_tokens); }
  // Copies the timeline of another session of the engine, bit for bit. Both share its pages.
  void fork(Session& from);
  // Pages [first, first + count), all of which hold committed tokens: as a copy, or shared. A step that runs ahead
  // continues.
  void read_pages(int first, int count, std::span<std::byte> to);
  std::unique_ptr<PageRun> share_pages(int first, int count);

  // The decode path: "graph", or the megakernel's schedule. Empty on the CPU and before the first graph.
  std::string decode_path() const { return loop_ == nullptr ? "" : loop_->name(); }

 private:
  friend class Pass;
  friend class SessionProbe;
  friend class StepCostMeter;

  // A device that fails (StreamGroup) leaves every session's state unknown. drop_lost() empties the timeline after a
  // failure; check_not_lost() throws.
  void drop_lost();
  void check_not_lost() const;
  // Computes all of ids except the last, whose row a pass then computes. False: computed all of ids, as sync() does.
  bool advance_to_last_row(std::span<const int32_t> ids, const Interrupted& interrupted);
  void with_pages(int first, int count, const std::function<void()>& work);

  Timeline timeline_;
  std::unique_ptr<TokenLoop> loop_;  // null: the host samples
  Speculator speculator_;
  Decode decode_;
  int n_failures_ = 0;  // Engine::n_device_failures() that the state belongs to
};

}  // namespace lb
