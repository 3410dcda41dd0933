// Decode: from logits to the next token, and the step or tree that runs ahead of the caller. It knows to which sampler
// the device is bound, and where the logits of the newest token are.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "engine/speculator.h"
#include "engine/timeline.h"
#include "engine/token_loop.h"
#include "sampling/sampler.h"

namespace lb {

class Decode {
 public:
  // loop: null where tokens are sampled on the host.
  Decode(Timeline& timeline, Speculator& speculator, TokenLoop* loop);

  // Whether sample() starts what computes the next token. Not where a pass of several sessions computes it.
  void set_runs_ahead(bool on) { runs_ahead_ = on; }

  // --- the next token joins the timeline
  // Continues the timeline by the last of ids, where a step, a tree or a row of the tree computes it. False: nothing
  // does.
  bool follow(std::span<const int32_t> ids);
  // Continues it by a tree that is drafted below the last of ids.
  bool verify_draft(std::span<const int32_t> ids, const Interrupted& interrupted);
  // Another pass computes the row of this token, or a tree below it. Keeps the device's sampler where it chose the
  // token.
  void leave_for_pass(int32_t token);
  // Ends all that runs ahead. The logits stay.
  void rest();
  // rest() for readers of committed rows: a pending step goes on.
  void end_walk();

  // --- logits
  bool has_logits() const;
  std::span<const float> logits();  // [vocab] of the newest token, on the host
  // Logits of the newest token: of a row of the executor's last pass, copied from another session, in a row of the
  // stream's memory, or of the root of a tree that a pass has verified.
  void download_logits(const Executor& executor, int row);
  void copy_logits(std::span<const float> logits);
  void set_row_logits();
  void set_tree_logits();
  float* row_logits();  // [vocab] room for a row alone, or [rows, vocab] for a tree, in the stream's memory

  // --- choices
  int32_t sample(Sampler& sampler);
  Logprobs logprobs(int32_t token, int n_top);
  // The choice from a row that another pass has computed, for the caller to start; in a tree, starts it. Nothing where
  // it has started, and where the session runs ahead.
  std::optional<TokenLoop::RowChoice> choice_of_row(const Sampler& sampler);

  // Runs work that looks at the results of steps. A lost step leaves the state unknown: the timeline is emptied.
  void guard(const std::function<void()>& work);

 private:
  friend class SessionProbe;

  // Who chooses the tokens of a walk.
  enum class Walker {
    kHost,         // sends each row's mask, and has one token chosen after the other
    kDevice,       // the loop, down to the end of the path
    kDeviceAhead,  // likewise; the device accepts the path and drafts below its end: no other may be followed
  };
  // A choice of the device from the current row.
  enum class ChoiceState {
    kNone,
    kStarted,
    kLeavesTree,  // it has started, and its token leaves the tree in any case
  };

  // What there is of the next token: nothing, logits to choose it from, or the token. on_host: logits_ holds a copy.
  struct Idle {};
  struct HostLogits {};
  struct LoopLogits {     // of a step, which has chosen a token unless that waits for a mask
    bool waits_for_mask;  // sample() sends it
    bool on_host = false;
  };
  struct RowLogits {  // of a row outside a tree
    const float* at;
    ChoiceState choice = ChoiceState::kNone;
    bool on_host = false;
  };
  struct TreeLogits {  // of the row that the walk has reached
    int row;
    Walker walker;
    ChoiceState choice = ChoiceState::kNone;
    bool on_host = false;
  };
  struct Sampled {  // and nothing computes it yet
    int32_t token;
  };
  struct StepPending {  // a step has started with it
    int32_t token;      // kUnread: the device has chosen it, the host has not read it
    bool waits_for_mask;
  };
  struct TreePending {  // a tree with this root is being verified
    int32_t token;
    Walker walker;
  };
  struct TreeSampled {  // the tree holds it
    int32_t token;
    Walker walker;
  };
  using Next =
      std::variant<Idle, HostLogits, LoopLogits, RowLogits, TreeLogits, Sampled, StepPending, TreePending, TreeSampled>;
  static constexpr int32_t kUnread = -1;

  template <class State>
  State* as() {
    return std::get_if<State>(&next_);
  }
  void set(const Next& next);
  int32_t sampled() const;  // below 0: none
  bool device_walks() const;
  bool has_untaken_choice() const;
  const float* row_at(int row) const;

  // --- plain steps
  int32_t sample_on_host(Sampler& sampler);
  int32_t sample_in_loop(Sampler& sampler);
  bool start_choice(const Sampler& sampler);
  std::optional<TokenLoop::RowChoice> start_row_choice(const Sampler& sampler);
  void start_step(int32_t token, Timeline::NumbersFrom from, bool waits_for_mask);
  void abort_step();
  // Starts what computes the token, before the caller has it: a tree, or else a plain step.
  void start_next(const Sampler& sampler, int32_t token, bool has_draft);
  int32_t take();
  void forget_sampler();
  void drop_choices();

  // --- trees
  bool start_tree(int32_t root, bool has_draft, const Interrupted& interrupted);
  bool follow_tree(int32_t token);
  void descend_to(int row, Walker walker);
  void leave_tree(bool is_whole);
  int32_t sample_in_tree(Sampler& sampler);
  void start_choice_in_tree(const Sampler& sampler);
  Walker walk_on_device(const Sampler& sampler, int row);
  void start_walk(const Sampler& sampler, int row, bool accepts_path);
  void choose_from_row(const Sampler& sampler, const float* logits);

  Timeline& timeline_;
  Speculator& speculator_;
  TokenLoop* loop_;
  Next next_;
  uint64_t revision_ = 0;      // of the timeline that next_ follows
  std::vector<float> logits_;  // [vocab]
  uint64_t bound_ = 0;         // Sampler::version() whose state the loop has; 0: none
  bool runs_ahead_ = true;
  bool drafts_pay_ = false;  // on a device: the next token waits for the host, which may draft below it
};

}  // namespace lb
