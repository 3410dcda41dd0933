#include "speculation/planner.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "speculation/merge.h"

namespace lb {
namespace {

// An account bounds the loss, in units of a plain token's time. A step of time t that emits n tokens changes the
// account by n - t, and each emitted token adds kShare. A step may begin only if the account covers its loss in case no
// drafted token is accepted. So without a draft model N tokens take at most (1 + kShare) N + kFirstCredit: from 100
// tokens on, less than 1 % more than plain decoding. A draft model may also initially lose the expected gain of
// kFirstDrafts drafts. A sequence inherits no more credit than that from earlier sequences, whose gains say little
// about other text.
constexpr double kShare = 0.0075, kFirstCredit = 0.25;
constexpr int kFirstDrafts = 2;
constexpr double kMaxCredit = 64;  // cap on the credit from gains: bounds the loss once drafts go bad

// Least rate, in tokens per plain token's time, that the prior must predict for a draft model to pay. The rate must
// earn back the model's K and V, which took up to 6 % of a plain token's and of a prompt's time on a CPU.
constexpr double kMinRate = 1.25;

constexpr double kTrialShare = 0.005;  // fraction of the time that trials are expected to lose

}  // namespace

DraftPlanner::DraftPlanner(const StepCosts& costs, bool has_model, int draft_budget)
    : has_model_(has_model), budget_(draft_budget), first_credit_(kFirstCredit), credit_(kFirstCredit) {
  LB_CHECK(draft_budget >= 0 && draft_budget < kMaxTree, kInvalid, "draft_budget must be 0 to ", kMaxTree - 1, ", not ",
           draft_budget);
  for (auto& followed : followed_) followed.reserve(kMaxTree);
  set_costs(costs);
  if (!has_model || draft_budget > 0) return;
  credit_ = std::numeric_limits<double>::infinity();
  const Width prior = best_width(
      kMaxTree, [&](int n) { return times_.draft_time(times_.depth_of_rows(n)); },
      [&](int n) { return experience_.expected.accepted(n); });
  model_may_pay_ = prior.rate() > kMinRate;
  first_credit_ = credit_ = kFirstCredit + kFirstDrafts * std::max(0.0, prior.tokens - prior.time);
}

void DraftPlanner::set_costs(const StepCosts& costs) {
  if (budget_ > 0) return;
  times_.set_costs(costs);
  start_sequence(false);
}

void DraftPlanner::start_sequence(bool is_timed) {
  credit_ = std::min(credit_, first_credit_);
  times_.start_sequence(is_timed);
}

void DraftPlanner::add_draft_time(double ms) { times_.add_draft_time(draft_depth_, ms); }

void DraftPlanner::add_step_time(int rows, double ms) {
  if (!times_.learns()) return;
  times_.add_step_time(rows, ms);
  if (rows > 1) step_.time += times_.time_of_rows(rows) - step_.append_time;
}

void DraftPlanner::add_pass_time(int rows, double ms) {
  if (times_.learns() && times_.has_others()) times_.add_pass_time(rows, ms);
}

// The affordable width with the most tokens per time. accepted(n): expected accepted tokens of the first n rows;
// before(n): the step's time excluding the append.
template <class Before, class Accepted>
DraftPlanner::Width DraftPlanner::best_width(int rows, const Before& before, const Accepted& accepted) const {
  Width best;
  for (size_t tile = 0; tile < times_.n_tiles(); ++tile) {
    const int n = std::min(times_.tile_rows(tile), rows);
    if (n < 2) continue;
    const double append = times_.append_time(tile), time_before = before(n);
    const Width width{.rows = n, .append = append, .time = time_before + append, .tokens = 1 + accepted(n)};
    const double loss =
        std::max(width.time, time_before + 1) - 1;  // loss if nothing is accepted or the draft is dropped
    if (loss <= credit_ + step_.others_credit && width.rate() > best.rate()) best = width;
    if (n == rows) break;
  }
  return best;
}

StepKind DraftPlanner::choose(const Draft& text, int max_rows, const OtherRows& others) {
  step_ = {.max_rows = max_rows, .others_credit = others.credit, .text = text};
  if (text.rows > 1) step_.corrected_text = experience_.acceptance[kFromText].corrected(text);
  times_.set_others(others.rows);
  for (auto& followed : followed_) followed.clear();
  if (max_rows < 2 || times_.wants_plain()) return step_.kind;
  const bool has_text = step_.corrected_text.rows > 1, is_alone = has_model_ && !has_text;
  if (budget_ > 0) {
    if (is_alone) step_.rows_ahead = std::min(max_rows, budget_ + 1);
    return step_.kind = has_model_ ? StepKind::kModel : has_text ? StepKind::kText : step_.kind;
  }
  const std::array<Width, kDraftSources> widths = best_widths();
  const Width& by_model = widths[kFromModel];
  if (by_model.rows > 0) draft_depth_ = times_.depth_of_rows(by_model.rows);
  if (widths[kFromText].rate() > step_.bar) step_.bar = widths[kFromText].rate(), step_.kind = StepKind::kText;
  if (by_model.rate() > step_.bar) step_.bar = by_model.rate(), step_.kind = StepKind::kModel;
  start_trial(widths);
  if (is_alone && step_.kind == StepKind::kModel && !step_.is_trial) step_.rows_ahead = by_model.rows;
  return step_.kind;
}

// The best width of each source's tree. The model's tree includes the draft from text.
std::array<DraftPlanner::Width, kDraftSources> DraftPlanner::best_widths() const {
  const int text_rows = step_.corrected_text.rows, max_rows = step_.max_rows;
  const auto by_text = expected_tokens(step_.corrected_text);
  const auto text_accepted = [&](int n) { return by_text[std::min(n, std::max(text_rows, 1))]; };
  std::array<Width, kDraftSources> widths;
  if (text_rows > 1)
    widths[kFromText] = best_width(std::min(text_rows, max_rows), [](int) { return 0.0; }, text_accepted);
  if (has_model_)  // the union yields at least as many tokens as the better draft
    widths[kFromModel] = best_width(
        max_rows, [&](int n) { return times_.draft_time(times_.depth_of_rows(n)); },
        [&](int n) { return std::max(experience_.expected.accepted(n), text_accepted(n)); });
  return widths;
}

bool DraftPlanner::uses(DraftSource source) const {
  if (source == kFromModel) return step_.kind == StepKind::kModel;
  return step_.kind != StepKind::kPlain && step_.corrected_text.rows > 1;
}

// Tries a source once the time since its last use has earned the expected loss of a trial: the closer the source is to
// the best choice, the more often. Trials continue as long as they gain in total.
void DraftPlanner::start_trial(const std::array<Width, kDraftSources>& widths) {
  int due = kDraftSources;
  for (const DraftSource source : {kFromText, kFromModel}) {
    const Width& width = widths[source];
    const Trial& trial = trials_[source];
    if (uses(source) || width.rows == 0) continue;
    const double loss = width.time - width.tokens / step_.bar;
    if (trial.gain <= 0 && trial.waited * kTrialShare < loss) continue;
    if (due == kDraftSources || trial.waited > trials_[due].waited) due = source;
  }
  if (due == kDraftSources) return;
  step_.is_trial = true;
  step_.kind = due == kFromModel ? StepKind::kModel : StepKind::kText;
}

void DraftPlanner::set_tree(const Draft& draft, int rows, double before, double append) {
  step_.tree = draft;
  step_.tree.rows = rows;
  step_.time = before + append;
  step_.append_time = append;
}

void DraftPlanner::set_model_tree(const Draft& model, int rows) {
  LB_ASSERT(step_.rows_ahead >= rows);
  const Draft rescored = experience_.acceptance[kFromModel].rescored(model);
  experience_.expected.learn(rescored, times_.longest_depth());
  budget_ > 0 ? set_tree(rescored, rows, 0, 1)
              : set_tree(rescored, rows, times_.draft_time(draft_depth_), times_.time_of_rows(rows));
  follow(kFromModel, model);
}

bool DraftPlanner::draft_may_run_ahead() const {
  if (step_.rows_ahead == 0 || budget_ > 0) return step_.rows_ahead > 0;
  return credit_ >= 2 * (times_.draft_time(draft_depth_) + times_.time_of_rows(step_.rows_ahead) - 1);
}

void DraftPlanner::drop_draft() {
  if (budget_ == 0) credit_ -= times_.draft_time(draft_depth_);
}

const Draft& DraftPlanner::tree(const Draft* model) {
  LB_ASSERT(step_.kind != StepKind::kPlain && (model != nullptr) == (step_.kind == StepKind::kModel));
  Draft best = step_.corrected_text;
  double before = 0;
  if (model != nullptr) {
    const Draft corrected = experience_.acceptance[kFromModel].corrected(*model);
    experience_.expected.learn(corrected, times_.longest_depth());
    best = merge(best, corrected);
    before = times_.draft_time(draft_depth_);
  }
  const int rows = std::min(best.rows, step_.max_rows);
  if (budget_ > 0) {
    set_tree(best, std::min(rows, budget_ + 1), 0, 1);
  } else {
    const auto accepted = expected_tokens(best);
    const Width width =
        rows > 1 ? best_width(rows, [&](int) { return before; }, [&](int n) { return accepted[n]; }) : Width{};
    const bool is_worth_it = step_.is_trial || width.rate() > 1 / (before + 1);
    if (width.rows == 0 || !is_worth_it) {
      set_tree(best, 0, before, 1);
    } else {
      set_tree(best, width.rows, before, width.append);
    }
  }
  if (step_.text.rows > 1) follow(kFromText, step_.text);
  if (model != nullptr) follow(kFromModel, *model);
  return step_.tree;
}

// Finds the nodes of a source's draft in the tree.
void DraftPlanner::follow(DraftSource source, const Draft& draft) {
  std::array<int, kMaxTree> row;  // row of each draft node in the tree; -1: not in the tree
  row[0] = 0;
  for (int i = 1; i < draft.rows; ++i) {
    const int parent = row[draft.parents[i]];
    row[i] = -1;
    for (int r = parent + 1; parent >= 0 && r < step_.tree.rows && row[i] < 0; ++r)
      if (step_.tree.parents[r] == parent && step_.tree.tokens[r] == draft.tokens[i]) row[i] = r;
    if (row[i] >= 0) followed_[source].push_back({conditional(draft, i), row[i]});
  }
}

void DraftPlanner::add_accepted(std::span<const int32_t> path) {
  uint64_t accepted = 0;
  for (const int32_t row : path) {
    LB_ASSERT(row >= 0 && row < step_.tree.rows);
    accepted |= uint64_t(1) << row;
  }
  const double emitted = std::max<double>(1, path.size());
  credit_ = std::min(kMaxCredit, credit_ + kShare * emitted + emitted - step_.time);
  times_.set_after_plain(step_.tree.rows < 2);

  for (const DraftSource source : {kFromText, kFromModel}) {
    Trial& trial = trials_[source];
    if (!uses(source)) {
      trial.waited += step_.time;
      continue;
    }
    const bool is_tried = step_.is_trial && source == (step_.kind == StepKind::kModel ? kFromModel : kFromText);
    trial.waited = 0;
    trial.gain = is_tried ? std::max(0.0, trial.gain + emitted - step_.time * step_.bar) : 0;
    if (step_.tree.rows < 2) continue;
    std::array<Acceptance::Node, kMaxTree> nodes;
    int n = 0;
    for (const Followed& node : followed_[source])
      if (accepted >> step_.tree.parents[node.row] & 1)
        nodes[n++] = {node.drafted, step_.tree.depths[node.row], (accepted >> node.row & 1) != 0};
    experience_.acceptance[source].learn({nodes.data(), size_t(n)});
  }
}

}  // namespace lb
