// StepWidth: decides what each decode step verifies: nothing (one plain token), the suffix draft, the draft model's
// tree or the union of both, and how many rows of it. It maximises expected tokens per millisecond, from measured costs
// and from how often drafted nodes were accepted so far. A pure function of its inputs and their order. One step:
//   choose()  before the draft model runs, as its time is part of the choice
//   tree()    the rows to verify; not after kPlain
//   record()  the rows that were accepted
// Where a device grows the model's tree, its verify starts before the host has seen it: rows_ahead() and verified()
// take the place of tree(). Acceptance learned from one request holds for the next: keep one StepWidth for the life of
// a session.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "ops/draft.h"
#include "speculation/acceptance.h"

namespace lb {

struct StepCosts {
  struct Append {
    int rows;   // 2..kMaxTree, ascending: tiles of the products with few rows
    double ms;  // to verify a tree of up to so many rows: forward pass, head, sampling
  };
  std::vector<Append> append;
  double plain_ms = 0;    // one token decoded without speculation
  double draft_ms = 0;    // one tree of the draft model; 0 without one
  int draft_depth = 0;    // of that tree, where a shallower one takes less; 0: any depth takes as long
  double first_ms = 0;    // then: a tree of depth 1
  double context_ms = 0;  // the draft model's K and V of the plain tokens before a draft
  bool is_fixed = false;  // real times of steps do not replace them: then widths are the same in every run
};

enum class StepKind { kPlain, kSuffix, kModel };

// Other sequences in the same pass. A longer pass holds them up too, so that they share what accounts they have.
struct Company {
  int rows;       // one of each
  double credit;  // of all, less what their trees may lose in this pass
};

class StepWidth {
 public:
  // draft_budget: nodes below the root of every tree, whatever the costs; 0: chosen for each step. Throws kInvalid.
  StepWidth(const StepCosts& costs, bool has_model, int draft_budget = 0);

  // New costs. What was learned stays.
  void set_costs(const StepCosts& costs);
  // Another sequence begins, of any length. is_timed: took() is called for each of its steps.
  void start_sequence(bool is_timed);
  // Milliseconds that the model's draft took just now. Call it before took().
  void drafted(double ms);
  // Milliseconds that an append of so many rows took just now; 1: a plain token. Costs grow with the context, and real
  // times replace the measured ones. Call it before record(): the account pays the real time.
  void took(int rows, double ms);
  // Milliseconds that a pass took just now, of so many rows of this sequence and of those beside it.
  void took_beside(int rows, double ms);

  // suffix: rows == 0: none. max_rows: room in the sequence's state, the root included. Call tree() after kSuffix and
  // kModel, and record() after every step.
  StepKind choose(const Draft& suffix, int max_rows, const Company& beside = {0, 0});
  // The tree to verify, best rows first; scores are corrected by what was accepted. model: the model's tree after
  // kModel. No rows after kModel: the tree is not worth a verify, decode a plain token. Valid until the next choose().
  const Draft& tree(const Draft* model = nullptr);
  // After kModel: how many rows to verify of a tree not yet known, as recent trees were; 0: call tree(), because a
  // suffix draft joins the tree, or it is the model's trial and most likely not worth a verify.
  int rows_ahead() const { return rows_ahead_; }
  // Depth of the model's tree after kModel, and of one that is drafted ahead. At most kMaxTree: the model's own limit.
  int draft_depth() const { return draft_depth_; }
  // The model's tree of such a step, whose first `rows` rows are verified in its own order.
  void verified(const Draft& model, int rows);
  // Whether the model's draft for the next step may run before this step's tokens are known: after rows_ahead(), if
  // there is credit for both steps though all of it be wrong.
  bool draft_may_run_ahead() const;
  void drop_draft();  // such a draft was not used
  // path: rows of tree() that were accepted, root first; empty after a plain token.
  void record(std::span<const int32_t> path);

  // Tokens of plain decoding whose time speculation may lose before it must earn some.
  double credit() const { return credit_; }
  // Plain tokens that this step's tree loses if none of it is accepted.
  double loss() const { return tree_.rows > 1 ? time_ - 1 : 0; }
  // Whether the draft model gains at these costs if its drafts are as good as those of trained drafters mostly are.
  bool model_may_pay() const { return model_may_pay_; }

 private:
  enum Source { kFromSuffix, kFromModel, kSources };
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
  // A drafted node that is in tree_.
  struct Followed {
    double drafted;  // the drafter's probability, given its parent
    int row;
  };

  // Times in plain tokens: of all sequences of the pass, where there are others.
  static double mean_ratio(double mean, bool has_mean, double newest);
  double ratio(size_t i) const { return ratios_[i] > 0 ? ratios_[i] : ratio_; }
  double append_ms(size_t tile) const { return costs_.append[tile].ms * ratio(tile + 1); }
  double pass_ms(size_t tile) const { return append_ms(tile) + beside_ * sequence_ms_; }
  double plain_ms() const { return beside_ > 0 ? pass_ms(tile_of(beside_ + 1)) : costs_.plain_ms * ratio(0); }
  double in_tokens(double ms) const { return ms / plain_ms() * (beside_ + 1); }
  double append_time(size_t tile) const { return in_tokens(pass_ms(tile)) - beside_; }
  size_t tile_of(int rows) const;  // that holds so many rows, or the last one
  int depth_of_rows(int rows) const;
  double draft_ms(int depth) const;  // as measured at first
  double draft_time(int depth) const;
  template <class Before, class Accepted>
  Width best_width(int rows, const Before& before, const Accepted& accepted) const;
  void start_trial(const std::array<Width, kSources>& widths);
  void set_tree(const Draft& draft, int rows, double before, double append);
  void learn_size(const Draft& corrected);
  void expect_deeper(int known);
  double time_of_rows(int rows) const;  // of the append
  void follow(Source source, const Draft& draft);
  bool uses(Source source) const;

  StepCosts costs_;             // as measured at first
  std::vector<double> ratios_;  // real times over costs_: of a plain token, then of each tile; 0: none yet
  double ratio_ = 1;            // the newest one, which stands for what was not run yet
  double draft_ratio_ = 0;      // of drafts; 0: none yet
  double sequence_ms_ = 0;      // what each sequence adds to a pass besides its rows
  bool is_timed_ = false;       // took() is called in this sequence
  int since_plain_ = 0;         // steps
  int n_plain_ = 0;             // timed plain tokens of this sequence, up to kFirstPlain
  bool has_model_;
  int budget_;

  std::array<Acceptance, kSources> acceptance_;
  std::array<Trial, kSources> trials_;
  std::array<double, kMaxTree + 1> model_accepted_{};  // expected of the first n rows of a model's tree
  int n_trees_ = 0;                                    // of the draft model
  bool model_may_pay_ = true;
  bool is_after_plain_ = false;  // the step before was a plain token
  double first_credit_, credit_;

  // --- of the step
  StepKind kind_ = StepKind::kPlain;
  bool is_trial_ = false;
  double bar_ = 1;  // rate of the best choice
  int max_rows_ = 0, beside_ = 0, rows_ahead_ = 0, draft_depth_ = kMaxTree;
  double beside_credit_ = 0;
  double time_ = 1;                      // in plain tokens
  double append_time_ = 0;               // part of it
  Draft suffix_{}, corrected_suffix_{};  // as drafted, and with corrected scores
  Draft tree_{};
  std::array<std::vector<Followed>, kSources> followed_;
};

}  // namespace lb
