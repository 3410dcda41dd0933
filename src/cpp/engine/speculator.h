// Speculator: propose -> verify -> commit. It gets a tree below the newest token from the drafters, verifies the tree
// in one append, and commits the accepted path. Decode chooses the path's tokens, so drafts change how much is computed
// together, never the tokens.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

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

// How a walk through a verified tree ended. The walk holds the path.
struct Verdict {
  bool is_whole = false;        // the token after the path was not in the tree; false: the walk was cut short
  bool draft_is_ahead = false;  // the device has moved the draft model's rows and is drafting below the path's end
};

class Speculator {
 public:
  // loop: null on the CPU.
  Speculator(Timeline& timeline, TokenLoop* loop);
  // Enables speculation, planned with these costs.
  void start(const StepCosts& costs);

  // --- the caller's hints about the coming text
  // Whether drafters are used; initially true if the engine has one.
  void set_on(bool on) { is_on_ = on; }
  // How the next tokens are sampled; drafts are judged by what sequences of this kind showed.
  void set_sampling(SamplingKind kind);
  // A text that the next output is likely to repeat, as a whole or in parts; empty: none.
  void expect(std::span<const int32_t> text);
  // Keeps an output for the drafts of later ones.
  void remember(std::span<const int32_t> output);
  // Drafts from these outputs and adds outputs to them, instead of the engine-wide ones: response time reveals whether
  // an answer was drafted from another's output. Null: the engine-wide outputs again. No effect without the suffix
  // drafter.
  void share_outputs(std::shared_ptr<EarlierOutputs> outputs);
  // Proposes a tree below the next token, replacing the drafters'. parents: as in AppendOptions; -1 is the next token.
  // Tokens beyond the end of the context are dropped.
  void suggest(std::span<const int32_t> tokens, std::span<const int32_t> parents);

  struct Counts {
    int64_t verified = 0;                       // trees
    int64_t drafted = 0;                        // nodes below the roots
    int64_t accepted = 0;                       // nodes that the sampler chose
    std::array<int64_t, kMaxTree> by_length{};  // [n] trees walked to their end with n accepted nodes
  };
  const Counts& counts() const { return counts_; }
  void forget_counts() { counts_ = {}; }

  // --- propose
  bool is_on() const { return has_suggestion() || (is_on_ && planner_.has_value()); }  // a tree may be verified next
  bool has_suggestion() const { return !drafters_.suggested.is_empty(); }
  // Rows of a tree that fit after the timeline, including the root.
  int room() const;
  // Whether a draft below the root would pay. Uses only the drafters from text.
  bool pays(int32_t root);
  struct Proposal {
    int max_rows = kMaxTree;
    bool has_draft = false;  // the draft model's candidates below this root are in the memory
    bool may_grow = false;   // the device may grow the tree: the verify does not need it on the host
    OtherRows others{0, 0};
  };
  // Whether a tree below the root is worth a verify. The tree is in walk(), or the device will grow it.
  bool propose(int32_t root, const Proposal& options);
  void propose_root(int32_t root);  // the root alone

  // --- verify
  void verify(const Interrupted& interrupted);
  // Begins the walk of a tree whose rows another pass computes.
  void begin_verified();
  void upload() const;  // the tree, for the devices' walk
  const TreeWalk& walk() const { return tree_.walk; }
  // [shards] of [rows, vocab] of the tree; null on shards that compute no logits. Empty: the engine does not draft.
  std::span<float* const> logits() const { return logits_; }
  void begin_walk() { tree_.walk.begin(); }
  void descend(int child);
  // Brings a device-grown tree to the host: by waiting for the device, or without a wait once a later token has been
  // taken.
  void wait_for_tree();
  void fetch_tree();
  // --- the device's walk. The caller has the turn.
  bool can_draft_ahead(int row);  // whether the device may accept its path from this row and draft below the path's end
  std::span<const VerifiedTree> verified_trees(int row, bool accepts_path);  // [shards], until the next call
  void draft_ahead();

  // --- commit
  void commit(const Verdict& verdict);
  void drop() { tree_.walk.end(); }  // the timeline is empty

  // Step times on the CPU, whose calls return when the work is complete.
  void add_prefill_time(int rows, double ms);
  void add_pass_time(int rows, double ms);
  // Time that trees may lose, and that the proposed tree loses if none of it is accepted, in plain tokens.
  double credit() const { return planner_ ? planner_->credit() : 0; }
  double loss() const { return tree_.is_planned ? planner_->loss() : 0; }
  // Another sequence begins.
  void start_sequence();
  int max_tree_rows() const;

  PartClock& parts() { return parts_; }
  // For benchmarks: returns how many tokens of the next tree to accept, regardless of sampling. Null: the sampler
  // decides.
  using NextLength = std::function<int()>;
  void replay(NextLength next_length);

 private:
  friend class SessionProbe;
  friend class StepCostMeter;

  struct Drafters {
    SuggestedDraft suggested;
    DrafterUnion from_text;               // drafts at negligible cost
    SuffixDrafter* suffix = nullptr;      // member of from_text; null without the suffix drafter
    std::unique_ptr<ModelDrafter> model;  // costs time; null without a draft model
  };
  // The tree that is being proposed, verified or walked.
  struct VerifyTree {
    TreeWalk walk;
    bool is_planned = false;  // the planner chose it
    bool is_known = true;     // on the host; false: the device grows it, walk has only the root and the number of rows
    int max_rows = 0;         // most rows that the device may grow
  };
  DraftRequest request(int32_t root, int max_rows) const;
  Draft draft_from_text(int32_t root, int max_rows);
  bool choose_tree(int32_t root, int max_rows, const Proposal& options);
  Draft model_tree(int32_t root, int max_rows, bool has_draft, bool may_grow);
  void fill(int shard, const Timeline::RowInputs& to);
  void begin_replayed();
  // Computes the tree's rows and their logits. `fill` sends the inputs to a shard's stream.
  void run_tree(const Timeline::Fill& fill, const Interrupted& interrupted);

  Timeline& timeline_;
  TokenLoop* loop_;
  std::vector<std::unique_ptr<Memory>> reserved_;  // backs memory_; empty if the engine does not draft
  std::vector<TreeMemory> memory_;                 // [shards]; empty memory on shards that neither compute logits nor
                                                   // draft
  std::vector<float*> logits_;                     // of memory_; empty if the engine does not draft
  // Addresses in memory_: a tree's inputs are in session-owned memory so that a GPU can grow the tree in place. On
  // shards without such memory the addresses are the pass buffers'.
  std::vector<Timeline::RowInputs> inputs_;
  std::vector<VerifiedTree> verified_;  // of verified_trees(), kept so that a step allocates nothing
  std::optional<DraftPlanner> planner_;
  SamplingKind sampling_ = SamplingKind::kGreedy;
  Drafters drafters_;
  VerifyTree tree_;
  bool is_on_ = false;
  Counts counts_;
  NextLength next_length_;
  PartClock parts_;
};

}  // namespace lb
