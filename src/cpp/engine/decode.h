// Decode: turns logits into the next token, and runs a step or a tree ahead of the caller. It tracks which sampler the
// device is bound to and where the newest token's logits are.
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
  // loop: null if the host samples tokens.
  Decode(Timeline& timeline, Speculator& speculator, TokenLoop* loop);

  // Whether sample() also starts computing the next token. Off while passes of several sessions compute it.
  void set_runs_ahead(bool on) { runs_ahead_ = on; }

  // --- the next token joins the timeline
  // Adds the last of ids to the timeline if a running step or a row of the tree already computes it. False: none
  // does.
  bool follow(std::span<const int32_t> ids);
  // Drafts and verifies a tree below the last of ids, and adds that token to the timeline. False: no draft pays.
  bool verify_draft(std::span<const int32_t> ids, const Interrupted& interrupted);
  // Computes the row of the last of ids in the loop, and adds that token to the timeline. False: the host samples, or
  // the context is full.
  bool decode_row(std::span<const int32_t> ids);
  // Leaves this token's row, or a tree below it, to another pass. Keeps the device's sampler state if the device chose
  // the token.
  void leave_for_pass(int32_t token);
  // Ends all work that runs ahead. The logits stay.
  void rest();
  // rest() for readers of committed rows: a pending step continues.
  void end_walk();

  // --- logits
  bool has_logits() const;
  std::span<const float> logits();              // [vocab] of the newest token, on the host
  std::optional<LogitsRow> device_row() const;  // the newest token's, in devices' memory; none: on the host
  // Set the newest token's logits. Sources: a row of the pass buffers' last pass, another session, a row in the
  // stream's memory, or the root of a tree that a pass has verified.
  void download_logits(const PassBuffers& buffers, int row);
  void copy_logits(std::span<const float> logits);
  void set_row_logits();
  void set_tree_logits();
  // [shards] room for a single row [vocab], or for a tree [rows, vocab]. Empty: on_host() is the room.
  std::span<float* const> row_logits() const;
  float* on_host() { return logits_.data(); }

  // --- choices
  int32_t sample(Sampler& sampler);
  Logprobs logprobs(int32_t token, int n_top);
  // The choice from a row that another pass has computed, for the caller to start. In a tree, starts the choice itself.
  // None if the choice has already started or the session runs ahead.
  std::optional<TokenLoop::RowChoice> choice_of_row(const Sampler& sampler);

  // Waits until the device has chosen the next token, if it has begun to.
  void wait_for_choice();

  // Forgets all tokens, after results were lost.
  void lose();
  // Runs work that reads results of steps. If a step was lost, the state is unknown and the timeline is emptied.
  void guard(const std::function<void()>& work);

 private:
  friend class SessionProbe;

  // Where the tokens of a walk are chosen.
  enum class Walker {
    kHost,         // the host sends each row's mask; tokens are chosen one by one
    kDevice,       // the loop, down to the end of the path
    kDeviceAhead,  // as kDevice; the device also accepts the path, which binds the host, and drafts below it
  };
  // State of the device's choice from the current row.
  enum class ChoiceState {
    kNone,
    kStarted,
    kLeavesTree,  // started; its token counts as outside the tree, even if the tree holds it
  };

  // State of the next token: nothing yet, logits to choose from, or the token. on_host: logits_ holds a copy.
  struct Idle {};
  struct HostLogits {};
  struct LoopLogits {     // logits of a step, which has already chosen a token unless the choice waits for a mask
    bool waits_for_mask;  // sample() sends it
    bool on_host = false;
  };
  struct RowLogits {  // logits of a row outside a tree
    LogitsRow at;
    ChoiceState choice = ChoiceState::kNone;
    bool on_host = false;
  };
  struct TreeLogits {  // logits of the walk's current row
    int row;
    Walker walker;
    ChoiceState choice = ChoiceState::kNone;
    bool on_host = false;
  };
  struct Sampled {  // a token whose row nothing computes yet
    int32_t token;
  };
  struct StepPending {  // a step with this token has started
    int32_t token;      // kUnread: the device has chosen it, the host has not read it
    bool waits_for_mask;
  };
  struct TreePending {  // a tree with this root is being verified
    int32_t token;
    Walker walker;
  };
  struct TreeSampled {  // the tree holds the token
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
  LogitsRow row_at(int row) const;

  // --- plain steps
  int32_t sample_on_host(Sampler& sampler);
  int32_t sample_in_loop(Sampler& sampler);
  bool start_choice(const Sampler& sampler);
  std::optional<TokenLoop::RowChoice> start_row_choice(const Sampler& sampler);
  void start_step(int32_t token, Timeline::NumbersFrom from, bool waits_for_mask);
  void abort_step();
  // Starts computing the token before the caller has it: in a tree, or else in a plain step.
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
  void choose_from_row(const Sampler& sampler, const LogitsRow& logits);

  Timeline& timeline_;
  Speculator& speculator_;
  TokenLoop* loop_;
  Next next_;
  uint64_t revision_ = 0;      // Timeline::revision() that next_ belongs to
  std::vector<float> logits_;  // [vocab]
  uint64_t bound_ = 0;         // Sampler::version() of the state in the loop; 0: none
  bool runs_ahead_ = true;
  bool drafts_pay_ = false;  // on a device: no step runs ahead, so that the host may draft below the next token
};

}  // namespace lb
