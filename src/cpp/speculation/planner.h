// DraftPlanner: decides what each decode step verifies: nothing (one plain token), the draft from text, the draft
// model's tree or the union of both, and how many rows of it. It maximises expected tokens per millisecond, from
// measured costs and from how often drafted nodes were accepted so far. A pure function of its inputs and their order.
// One step:
//   choose()        before the draft model runs, as its time is part of the choice
//   tree()          the rows to verify; not after kPlain
//   add_accepted()  the rows that were accepted
// Where a device grows the model's tree, its verify starts before the host has seen it: rows_ahead() and
// set_model_tree() take the place of tree(). Acceptance learned from one request holds for the next: keep one
// DraftPlanner for the life of a session.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "ops/draft.h"
#include "speculation/acceptance.h"
#include "speculation/expected_tree.h"
#include "speculation/step_times.h"

namespace lb {

// What a step verifies: nothing, the tree of the drafters from text, or the draft model's, in union with the former.
enum class StepKind { kPlain, kText, kModel };

// Other sequences in the same pass. A longer pass holds them up too, so that they share what accounts they have.
struct OtherRows {
  int rows;       // one of each
  double credit;  // of all, less what their trees may lose in this pass
};

class DraftPlanner {
 public:
  // draft_budget: nodes below the root of every tree, whatever the costs; 0: chosen for each step. Throws kInvalid.
  DraftPlanner(const StepCosts& costs, bool has_model, int draft_budget = 0);

  // New costs. What was learned stays.
  void set_costs(const StepCosts& costs);
  // Another sequence begins, of any length. is_timed: add_step_time() is called for each of its steps.
  void start_sequence(bool is_timed);
  // Milliseconds that the model's draft took just now. Call it before add_step_time().
  void add_draft_time(double ms);
  // Milliseconds that an append of so many rows took just now; 1: a plain token. Costs grow with the context, and real
  // times replace the measured ones. Call it before add_accepted(): the account pays the real time.
  void add_step_time(int rows, double ms);
  // Milliseconds that a pass took just now, of so many rows of this sequence and of those beside it.
  void add_pass_time(int rows, double ms);

  // text: the tree of the drafters from text; rows == 0: none. max_rows: room in the sequence's state, the root
  // included. Call tree() after kText and kModel, and add_accepted() after every step.
  StepKind choose(const Draft& text, int max_rows, const OtherRows& others = {0, 0});
  // The tree to verify, best rows first; scores are corrected by what was accepted. model: the model's tree after
  // kModel. No rows after kModel: the tree is not worth a verify, decode a plain token. Valid until the next choose().
  const Draft& tree(const Draft* model = nullptr);
  // After kModel: how many rows to verify of a tree not yet known, as recent trees were; 0: call tree(), because a
  // draft from text joins the tree, or it is the model's trial and most likely not worth a verify.
  int rows_ahead() const { return step_.rows_ahead; }
  // Depth of the model's tree after kModel, and of one that is drafted ahead. At most kMaxTree: the model's own limit.
  int draft_depth() const { return draft_depth_; }
  // The model's tree of such a step, whose first `rows` rows are verified in its own order.
  void set_model_tree(const Draft& model, int rows);
  // Whether the model's draft for the next step may run before this step's tokens are known: after rows_ahead(), if
  // there is credit for both steps though all of it be wrong.
  bool draft_may_run_ahead() const;
  void drop_draft();  // such a draft was not used
  // path: rows of tree() that were accepted, root first; empty after a plain token.
  void add_accepted(std::span<const int32_t> path);

  // Tokens of plain decoding whose time speculation may lose before it must earn some.
  double credit() const { return credit_; }
  // Plain tokens that this step's tree loses if none of it is accepted.
  double loss() const { return step_.tree.rows > 1 ? step_.time - 1 : 0; }
  // Whether the draft model gains at these costs if its drafts are as good as those of trained drafters mostly are.
  bool model_may_pay() const { return model_may_pay_; }

 private:
  enum Source { kFromText, kFromModel, kSources };
  // A number of rows to verify, and what the step gives.
  struct Width {
    int rows = 0;       // 0: none is affordable
    double append = 0;  // time of the append, in plain tokens
    double time = 1;    // of the whole step
    double tokens = 0;  // expected, at least 1
    double rate() const { return tokens / time; }
  };
  // When a source is tried although another choice looks better.
  struct Trial {
    double waited = 0;  // plain tokens: since the source was used
    double gain = 0;    // plain tokens: of the trials in a row, over the best other choice
  };
  // A drafted node that is in the tree.
  struct Followed {
    double drafted;  // the drafter's probability, given its parent
    int row;
  };

  // What choose() leaves for the rest of the step. Times in plain tokens.
  struct Step {
    StepKind kind = StepKind::kPlain;
    bool is_trial = false;
    double bar = 1;  // rate of the best choice
    int max_rows = 0, rows_ahead = 0;
    double others_credit = 0;
    double time = 1;
    double append_time = 0;          // part of it
    Draft text{}, corrected_text{};  // as drafted, and with corrected scores
    Draft tree{};                    // to verify
  };

  template <class Before, class Accepted>
  Width best_width(int rows, const Before& before, const Accepted& accepted) const;
  std::array<Width, kSources> best_widths() const;
  void start_trial(const std::array<Width, kSources>& widths);
  void set_tree(const Draft& draft, int rows, double before, double append);
  void follow(Source source, const Draft& draft);
  bool uses(Source source) const;

  StepTimes times_;
  bool has_model_;
  int budget_;
  std::array<Acceptance, kSources> acceptance_;
  std::array<Trial, kSources> trials_;
  ExpectedTree expected_;  // of the draft model
  bool model_may_pay_ = true;
  double first_credit_, credit_;
  int draft_depth_ = kMaxTree;
  Step step_;
  std::array<std::vector<Followed>, kSources> followed_;
};

}  // namespace lb
