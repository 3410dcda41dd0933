// Speculator: propose -> verify -> commit. It asks the drafters for a tree below the newest token, verifies the tree in
// one append, and commits the path that was accepted. Decode chooses the tokens of the path, so a draft changes how
// much is computed together, and no token.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "engine/model_drafter.h"
#include "engine/part_clock.h"
#include "engine/timeline.h"
#include "engine/token_loop.h"
#include "engine/tree_memory.h"
#include "engine/tree_walk.h"
#include "speculation/drafter.h"
#include "speculation/planner.h"
#include "speculation/suffix.h"

namespace lb {

// How a walk through a verified tree ended. The path is the walk's.
struct Verdict {
  bool is_whole = false;        // the token after the path was not in the tree; else something cut the walk short
  bool draft_is_ahead = false;  // the device has moved the rows of the draft model and drafts below the path's end
};

class Speculator {
 public:
  // loop: null on the CPU.
  Speculator(Timeline& timeline, TokenLoop* loop);
  // Speculates from now on, at these costs.
  void start(const StepCosts& costs);

  // --- what a caller knows about the text to come
  // Whether drafters are asked; true at first where the engine has one.
  void set_on(bool on) { is_on_ = on; }
  // A text that the next output is likely to repeat, as a whole or in parts; empty: none.
  void expect(std::span<const int32_t> text);
  // Keeps an output for the drafts of later ones.
  void remember(std::span<const int32_t> output);
  // Drafts from these outputs in place of those of all sessions, and keeps outputs there: how fast an answer comes
  // tells what it was drafted from. Null: those of all sessions again. Nothing where no suffixes are drafted.
  void share_outputs(std::shared_ptr<EarlierOutputs> outputs);
  // Proposes a tree below the next token, in place of the drafters': parents as in AppendOptions, -1 is that token.
  // Tokens beyond the end of the context are left out.
  void suggest(std::span<const int32_t> tokens, std::span<const int32_t> parents);

  struct Counts {
    int64_t verified = 0;                       // trees
    int64_t drafted = 0;                        // nodes below the roots
    int64_t accepted = 0;                       // nodes that the sampler chose
    std::array<int64_t, kMaxTree> by_length{};  // [n] trees walked to their end, of which n nodes were accepted
  };
  const Counts& counts() const { return counts_; }
  void forget_counts() { counts_ = {}; }

  // --- propose
  bool is_on() const { return has_suggestion() || (is_on_ && planner_.has_value()); }  // a tree may be verified next
  bool has_suggestion() const { return !drafters_.suggested.is_empty(); }
  // Rows of a tree that fit after the timeline, the root's among them.
  int room() const;
  // Whether a draft below the root would pay. Asks the drafters from text only.
  bool pays(int32_t root);
  struct Proposal {
    int max_rows = kMaxTree;
    bool has_draft = false;  // the draft model's candidates below this root are in the memory
    bool may_grow = false;   // the device may grow the tree: the host need not know it before the verify
    OtherRows others{0, 0};
  };
  // Whether there is a tree below the root that is worth a verify: in walk(), or for the device to grow.
  bool propose(int32_t root, const Proposal& options);
  void propose_root(int32_t root);  // the root alone

  // --- verify
  void verify(const Interrupted& interrupted);
  // The tree's rows are in an append that another pass computes.
  void begin_verified();
  void upload(Stream& stream) const;  // the tree, for the device's walk
  const TreeWalk& walk() const { return tree_.walk; }
  float* logits() const { return memory_.logits; }  // [rows, vocab] of the tree; null: the engine does not draft
  void begin_walk() { tree_.walk.begin(); }
  void descend(int child);
  // Makes a tree that the device has grown known to the host: after waiting for the device, or after a token that was
  // chosen later.
  void wait_for_tree();
  void fetch_tree();
  // --- the device's walk. The caller has locked the mutex.
  bool can_draft_ahead(int row);  // whether the device may accept its path from this row, and draft below its end
  VerifiedTree verified_tree(int row, bool accepts_path);
  void draft_ahead();

  // --- commit
  void commit(const Verdict& verdict);
  void drop() { tree_.walk.end(); }  // the timeline is empty

  // Times on the CPU, which has finished when a call returns.
  void add_prefill_time(int rows, double ms);
  void add_pass_time(int rows, double ms);
  // Plain tokens that trees may lose, and that the proposed tree loses if none of it is accepted.
  double credit() const { return planner_ ? planner_->credit() : 0; }
  double loss() const { return tree_.is_planned ? planner_->loss() : 0; }
  // Another sequence begins.
  void start_sequence() {
    if (planner_) planner_->start_sequence(loop_ == nullptr);
  }
  int max_tree_rows() const;

  PartClock& parts() { return parts_; }
  // For benchmarks: how many tokens of the next tree are accepted, whatever is sampled. Null: the sampler decides.
  using NextLength = std::function<int()>;
  void replay(NextLength next_length);

 private:
  friend class SessionProbe;
  friend class StepCostMeter;

  struct Drafters {
    SuggestedDraft suggested;
    DrafterUnion from_text;               // known without cost
    SuffixDrafter* suffix = nullptr;      // in from_text; null where the engine drafts no suffixes
    std::unique_ptr<ModelDrafter> model;  // costs time; null without a draft model
  };
  // The tree that is being proposed, verified or walked.
  struct VerifyTree {
    TreeWalk walk;
    bool is_planned = false;  // the planner chose it
    bool is_known = true;     // false: the device grows it; walk has its root and its number of rows
    int max_rows = 0;         // that the device may grow
  };
  DraftRequest request(int32_t root, int max_rows) const;
  Draft draft_from_text(int32_t root, int max_rows);
  bool choose_tree(int32_t root, int max_rows, const Proposal& options);
  Draft model_tree(int32_t root, int max_rows, bool has_draft, bool may_grow);
  void fill(Stream& stream, const Timeline::RowInputs& to);
  void begin_replayed();
  // Computes the tree's rows and their logits. `fill` sends the inputs to the stream.
  void run_tree(const std::function<void(Stream&, const Timeline::RowInputs&)>& fill, const Interrupted& interrupted);

  Timeline& timeline_;
  TokenLoop* loop_;
  std::unique_ptr<Memory> reserved_;  // of memory_; null where the engine does not draft
  TreeMemory memory_;
  std::optional<DraftPlanner> planner_;
  Drafters drafters_;
  VerifyTree tree_;
  bool is_on_ = false;
  Counts counts_;
  NextLength next_length_;
  PartClock parts_;
};

}  // namespace lb
