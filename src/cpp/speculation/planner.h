// DraftPlanner: decides what each decode step verifies: nothing (one plain token), the draft from text, the draft
// model's tree or the union of both, and how many rows of it. It maximises expected tokens per millisecond, from
// measured costs and from how often drafted nodes were accepted so far. Deterministic: depends only on its inputs and
// their order. One step:
//   choose()        before the draft model runs, as its time is part of the choice
//   tree()          the rows to verify; not after kPlain
//   add_accepted()  the rows that were accepted
// If the device grows the model's tree, the verify starts before the host has seen the tree: rows_ahead() and
// set_model_tree() replace tree(). What one sequence shows applies to the next: experience() and set_experience().
#pragma once

#include <array>
#include <span>
#include <vector>

#include "ops/draft.h"
#include "speculation/experience.h"
#include "speculation/step_times.h"

namespace lb {

// The tree that a step verifies: none, the text drafters', or the union of the text drafters' and the draft model's.
enum class StepKind { kPlain, kText, kModel };

// Other sequences in the same pass. A longer pass delays them too, so all sequences of a pass share their credit.
struct OtherRows {
  int rows;       // one per sequence
  double credit;  // their total credit, less the possible loss of their trees in this pass
};

class DraftPlanner {
 public:
  // draft_budget: fixed number of nodes below the root, regardless of costs; 0: chosen for each step. Throws kInvalid.
  DraftPlanner(const StepCosts& costs, bool has_model, int draft_budget = 0);

  // Replaces the costs. Learned acceptance stays.
  void set_costs(const StepCosts& costs);
  // Learned acceptance of drafts; initially a prior.
  const DraftExperience& experience() const { return experience_; }
  void set_experience(const DraftExperience& experience) { experience_ = experience; }
  // Begins another sequence, of any length. is_timed: add_step_time() will be called for each of its steps.
  void start_sequence(bool is_timed);
  // Adds the measured time of the model's last draft. Call before add_step_time().
  void add_draft_time(double ms);
  // Adds the measured time of the last append of `rows` rows; 1: a plain token. Costs grow with the context, so these
  // times replace the initial costs. Call before add_accepted(), which charges the real time to the account.
  void add_step_time(int rows, double ms);
  // Adds the measured time of the last pass. rows: all rows of the pass, this sequence's and the others'.
  void add_pass_time(int rows, double ms);

  // text: the text drafters' tree; rows == 0: none. max_rows: room in the sequence's state, including the root. Call
  // tree() after kText and kModel, and add_accepted() after every step.
  StepKind choose(const Draft& text, int max_rows, const OtherRows& others = {0, 0});
  // The tree to verify, best rows first, with scores corrected by learned acceptance. model: the model's tree, required
  // after kModel. No rows after kModel: the tree is not worth a verify; decode a plain token. Valid until the next
  // choose().
  const Draft& tree(const Draft* model = nullptr);
  // After kModel: how many rows to verify of a tree not yet known, judging by recent trees. 0: call tree(), because a
  // draft from text joins the tree, or because this is a trial of the model that is probably not worth a verify.
  int rows_ahead() const { return step_.rows_ahead; }
  // Depth of the model's tree after kModel, also when drafted ahead. kMaxTree: the model's own limit applies.
  int draft_depth() const { return draft_depth_; }
  // Sets the model's tree of a step with rows_ahead() > 0. Its first `rows` rows were verified, in the tree's own
  // order.
  void set_model_tree(const Draft& model, int rows);
  // Whether the model's draft for the next step may run before this step's tokens are known. Call after rows_ahead().
  // True if the credit covers both steps even when nothing is accepted.
  bool draft_may_run_ahead() const;
  void drop_draft();  // the draft that ran ahead is not used
  // path: rows of tree() that were accepted, root first; empty after a plain token.
  void add_accepted(std::span<const int32_t> path);

  // Time that speculation may lose before it must gain, in plain tokens.
  double credit() const { return credit_; }
  // Plain tokens that this step's tree loses if none of it is accepted.
  double loss() const { return step_.tree.rows > 1 ? step_.time - 1 : 0; }
  // Whether the draft model would gain at these costs if its drafts are as good as a typical trained drafter's.
  bool model_may_pay() const { return model_may_pay_; }

 private:
  // A number of rows to verify, with the step's time and expected tokens.
  struct Width {
    int rows = 0;       // 0: none is affordable
    double append = 0;  // time of the append, in plain tokens
    double time = 1;    // of the whole step
    double tokens = 0;  // expected, at least 1
    double rate() const { return tokens / time; }
  };
  // State of a source's trials: it is tried now and then although another choice looks better.
  struct Trial {
    double waited = 0;  // plain tokens: since the source was used
    double gain = 0;    // plain tokens: of the current run of trials, over the best other choice
  };
  // A source's node that is in the tree.
  struct Followed {
    double drafted;  // the drafter's probability, given its parent
    int row;
  };

  // Result of choose() for the rest of the step. Times in plain tokens.
  struct Step {
    StepKind kind = StepKind::kPlain;
    bool is_trial = false;
    double bar = 1;  // rate of the best choice
    int max_rows = 0, rows_ahead = 0;
    double others_credit = 0;
    double time = 1;
    double append_time = 0;          // part of `time`
    Draft text{}, corrected_text{};  // as drafted, and with corrected scores
    Draft tree{};                    // to verify
  };

  template <class Before, class Accepted>
  Width best_width(int rows, const Before& before, const Accepted& accepted) const;
  std::array<Width, kDraftSources> best_widths() const;
  void start_trial(const std::array<Width, kDraftSources>& widths);
  void set_tree(const Draft& draft, int rows, double before, double append);
  void follow(DraftSource source, const Draft& draft);
  bool uses(DraftSource source) const;

  StepTimes times_;
  bool has_model_;
  int budget_;
  DraftExperience experience_;
  std::array<Trial, kDraftSources> trials_;
  bool model_may_pay_ = true;
  double first_credit_, credit_;
  int draft_depth_ = kMaxTree;
  Step step_;
  std::array<std::vector<Followed>, kDraftSources> followed_;
};

}  // namespace lb
