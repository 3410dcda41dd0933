#include "speculation/width.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "speculation/merge.h"

namespace lb {
namespace {

// The loss is bounded by an account in tokens of plain decoding. A step of time t that emits n tokens changes it by
// n - t, and each emitted token adds kShare. A step may begin only if the account covers its loss should no drafted
// token be accepted. So without a draft model N tokens take at most (1 + kShare) N + kFirstCredit: less than 1 % more
// than plain from 100 tokens on. A draft model may also lose at first what kFirstDrafts of its drafts should gain. A
// sequence inherits no more than that from the ones before: their gains tell little about other text.
constexpr double kShare = 0.0075, kFirstCredit = 0.25;
constexpr int kFirstDrafts = 2;
constexpr double kMaxCredit = 64;  // what gains in a sequence may pay for, after the drafts went bad

// Before a draft model has drafted: probability of each token of a path, its parent being accepted. The trained
// drafters of small models reach 0.6 to 0.8, recorded ones of a 27B 0.75 (MTP) and 0.85 (DFlash).
constexpr double kPriorChance = 0.6;
// Tokens per plain token's time that the prior has to reach for a draft model to be worth its keys and values, which
// took up to 6 % of a plain token and of a prompt on a CPU.
constexpr double kMinRate = 1.25;

constexpr double kTrialShare = 0.005;     // of the time: what trials are expected to lose
constexpr double kModelMean = 1.0 / 8;    // weight of the newest tree; the prior weighs as much as the first one
constexpr double kDeeperMean = 1.0 / 64;  // of what the newest tree lets expect below its own depth
// Weight of the newest time. A step may be held up, and cannot be hurried up: lower times weigh more.
constexpr double kSlowerMean = 1.0 / 8, kFasterMean = 1.0 / 2;
constexpr double kMostChange = 2;  // of a time at once
// A sequence begins with plain tokens, the fastest of which tells the scale of all times: the first one finds cold
// caches. Too high a time of a plain token would never be corrected, as drafts look better then: it is timed again.
constexpr int kFirstPlain = 3, kPlainEvery = 48;

}  // namespace

StepWidth::StepWidth(const StepCosts& costs, bool has_model, int draft_budget)
    : has_model_(has_model), budget_(draft_budget), first_credit_(kFirstCredit), credit_(kFirstCredit) {
  LB_CHECK(draft_budget >= 0 && draft_budget < kMaxTree, kInvalid, "draft_budget must be 0 to ", kMaxTree - 1, ", not ",
           draft_budget);
  for (auto& followed : followed_) followed.reserve(kMaxTree);
  costs_.append.reserve(kMaxTree);
  ratios_.reserve(kMaxTree);
  set_costs(costs);
  double chance = 1;
  for (int n = 2; n <= kMaxTree; ++n) model_accepted_[n] = model_accepted_[n - 1] + (chance *= kPriorChance);
  if (!has_model || draft_budget > 0) return;
  credit_ = std::numeric_limits<double>::infinity();
  const Width prior = best_width(
      kMaxTree, [&](int n) { return draft_time(depth_of_rows(n)); }, [&](int n) { return model_accepted_[n]; });
  model_may_pay_ = prior.rate() > kMinRate;
  first_credit_ = credit_ = kFirstCredit + kFirstDrafts * std::max(0.0, prior.tokens - prior.time);
}

void StepWidth::set_costs(const StepCosts& costs) {
  if (budget_ > 0) return;
  LB_CHECK(costs.plain_ms > 0 && costs.draft_ms >= 0 && costs.context_ms >= 0, kInvalid,
           "a plain token takes time and a draft no negative one: ", costs.plain_ms, " ms, ", costs.draft_ms,
           " ms and ", costs.context_ms, " ms");
  LB_CHECK(costs.draft_depth == 0 || (costs.draft_depth > 1 && costs.first_ms >= 0 && costs.first_ms <= costs.draft_ms),
           kInvalid, "a draft of depth ", costs.draft_depth, " takes ", costs.draft_ms,
           " ms, and one of depth 1 takes ", costs.first_ms,
           " ms; expected two depths and no longer time for the first");
  LB_CHECK(!costs.append.empty(), kInvalid, "no append was measured");
  int below = 1;
  for (const StepCosts::Append& append : costs.append) {
    LB_CHECK(append.rows > below && append.rows <= kMaxTree && append.ms > 0, kInvalid,
             "appends are measured at ascending rows from 2 to ", kMaxTree, " and take time; got ", append.rows,
             " rows in ", append.ms, " ms after ", below, " rows");
    below = append.rows;
  }
  costs_ = costs;
  start_sequence(false);
}

void StepWidth::start_sequence(bool is_timed) {
  credit_ = std::min(credit_, first_credit_);
  ratios_.assign(costs_.append.size() + 1, 0);
  ratio_ = 1;
  draft_ratio_ = 0;
  since_plain_ = n_plain_ = 0;
  is_after_plain_ = false;
  is_timed_ = is_timed && budget_ == 0 && !costs_.is_fixed;
}

// A step that another process held up is no measure.
double StepWidth::mean_ratio(double mean, bool has_mean, double newest) {
  const double likely = std::clamp(newest, mean / kMostChange, mean * kMostChange);
  return mean + (likely - mean) * (likely > mean && has_mean ? kSlowerMean : kFasterMean);
}

void StepWidth::drafted(double ms) {
  const double expected = draft_ms(draft_depth_);
  if (!is_timed_ || expected <= 0) return;
  const bool has_mean = draft_ratio_ > 0;
  draft_ratio_ = mean_ratio(has_mean ? draft_ratio_ : ratio_, has_mean, ms / expected);
}

void StepWidth::took(int rows, double ms) {
  if (budget_ > 0 || costs_.is_fixed) return;
  const size_t tile = tile_of(rows), i = rows > 1 ? tile + 1 : 0;
  const double now = ms / (rows > 1 ? costs_.append[tile].ms : costs_.plain_ms);
  since_plain_ = rows > 1 ? since_plain_ + 1 : 0;
  if (rows == 1 && n_plain_ < kFirstPlain) {
    ratios_[0] = n_plain_++ > 0 ? std::min(ratios_[0], now) : now;
  } else {
    ratios_[i] = mean_ratio(ratio(i), ratios_[i] > 0, now);
  }
  ratio_ = ratios_[i];
  if (rows > 1) time_ += append_time(tile) - append_time_;
}

void StepWidth::took_beside(int rows, double ms) {
  if (budget_ > 0 || costs_.is_fixed || beside_ == 0) return;
  const double now = std::max(0.0, ms - append_ms(tile_of(rows))) / beside_;
  sequence_ms_ += (now - sequence_ms_) * (now > sequence_ms_ && sequence_ms_ > 0 ? kSlowerMean : kFasterMean);
}

size_t StepWidth::tile_of(int rows) const {
  size_t tile = 0;
  while (tile + 1 < costs_.append.size() && costs_.append[tile].rows < rows) ++tile;
  return tile;
}

// Depth of the draft for a tree of so many rows.
int StepWidth::depth_of_rows(int rows) const {
  return costs_.draft_depth > 0 ? std::clamp(rows - 1, 1, costs_.draft_depth) : kMaxTree;
}

double StepWidth::draft_ms(int depth) const {
  double ms = costs_.draft_ms;
  if (depth < costs_.draft_depth)
    ms -= (ms - costs_.first_ms) * (costs_.draft_depth - depth) / (costs_.draft_depth - 1);
  return ms + (is_after_plain_ ? costs_.context_ms : 0);
}

double StepWidth::draft_time(int depth) const {
  return in_tokens(draft_ms(depth) * (draft_ratio_ > 0 ? draft_ratio_ : ratio_));
}

// The affordable width with the most tokens per time. accepted(n): expected accepted tokens of the first n rows;
// before(n): time that the step takes besides the append.
template <class Before, class Accepted>
StepWidth::Width StepWidth::best_width(int rows, const Before& before, const Accepted& accepted) const {
  Width best;
  for (size_t i = 0; i < costs_.append.size(); ++i) {
    const int n = std::min(costs_.append[i].rows - beside_, rows);
    if (n < 2) continue;
    const double append = append_time(i), time_before = before(n);
    const Width width{.rows = n, .append = append, .time = time_before + append, .tokens = 1 + accepted(n)};
    const double loss =
        std::max(width.time, time_before + 1) - 1;  // should nothing be accepted, or the draft be dropped
    if (loss <= credit_ + beside_credit_ && width.rate() > best.rate()) best = width;
    if (n == rows) break;
  }
  return best;
}

StepKind StepWidth::choose(const Draft& suffix, int max_rows, const Company& beside) {
  suffix_ = suffix;
  corrected_suffix_ = suffix.rows > 1 ? acceptance_[kFromSuffix].corrected(suffix) : Draft{};
  max_rows_ = max_rows;
  beside_ = beside.rows;
  beside_credit_ = beside.credit;
  kind_ = StepKind::kPlain;
  is_trial_ = false;
  tree_.rows = 0;
  rows_ahead_ = 0;
  time_ = 1;
  for (auto& followed : followed_) followed.clear();
  if (max_rows < 2) return kind_;
  if (is_timed_ && beside_ == 0 && (n_plain_ < kFirstPlain || since_plain_ >= kPlainEvery)) return kind_;
  const int suffix_rows = corrected_suffix_.rows;
  const bool is_alone = has_model_ && suffix_rows <= 1;
  if (budget_ > 0) {
    if (is_alone) rows_ahead_ = std::min(max_rows, budget_ + 1);
    return kind_ = has_model_ ? StepKind::kModel : suffix_rows > 1 ? StepKind::kSuffix : kind_;
  }

  std::array<Width, kSources> widths;
  const auto by_suffix = expected_tokens(corrected_suffix_);
  const auto suffix_accepted = [&](int n) { return by_suffix[std::min(n, std::max(suffix_rows, 1))]; };
  if (suffix_rows > 1)
    widths[kFromSuffix] = best_width(std::min(suffix_rows, max_rows), [](int) { return 0.0; }, suffix_accepted);
  if (has_model_)  // the union with the suffix draft has at least the better one's tokens
    widths[kFromModel] = best_width(
        max_rows, [&](int n) { return draft_time(depth_of_rows(n)); },
        [&](int n) { return std::max(model_accepted_[n], suffix_accepted(n)); });
  if (widths[kFromModel].rows > 0) draft_depth_ = depth_of_rows(widths[kFromModel].rows);

  bar_ = 1;
  if (widths[kFromSuffix].rate() > bar_) bar_ = widths[kFromSuffix].rate(), kind_ = StepKind::kSuffix;
  if (widths[kFromModel].rate() > bar_) bar_ = widths[kFromModel].rate(), kind_ = StepKind::kModel;
  start_trial(widths);
  if (is_alone && kind_ == StepKind::kModel && !is_trial_) rows_ahead_ = widths[kFromModel].rows;
  return kind_;
}

bool StepWidth::uses(Source source) const {
  if (source == kFromModel) return kind_ == StepKind::kModel;
  return kind_ != StepKind::kPlain && corrected_suffix_.rows > 1;
}

// Tries a source whose expected loss has been saved up since it was used: the closer it is to the best choice, the more
// often. Trials go on as long as they gain as a whole.
void StepWidth::start_trial(const std::array<Width, kSources>& widths) {
  int due = kSources;
  for (const Source source : {kFromSuffix, kFromModel}) {
    const Width& width = widths[source];
    const Trial& trial = trials_[source];
    if (uses(source) || width.rows == 0) continue;
    const double loss = width.time - width.tokens / bar_;
    if (trial.gain <= 0 && trial.waited * kTrialShare < loss) continue;
    if (due == kSources || trial.waited > trials_[due].waited) due = source;
  }
  if (due == kSources) return;
  is_trial_ = true;
  kind_ = due == kFromModel ? StepKind::kModel : StepKind::kSuffix;
}

void StepWidth::set_tree(const Draft& draft, int rows, double before, double append) {
  tree_ = draft;
  tree_.rows = rows;
  time_ = before + append;
  append_time_ = append;
}

void StepWidth::learn_size(const Draft& corrected) {
  const auto accepted = expected_tokens(corrected);
  // The first rows of a deeper tree are the same: row n is at most n deep.
  const int deepest = *std::max_element(corrected.depths, corrected.depths + std::max(corrected.rows, 1));
  const int known = deepest < costs_.draft_depth ? deepest + 1 : kMaxTree;
  for (int n = 1; n <= known; ++n) {
    const double newest = accepted[std::min(n, std::max(corrected.rows, 1))];
    model_accepted_[n] += (newest - model_accepted_[n]) * std::max(kModelMean, 1.0 / (n_trees_ + 2));
  }
  ++n_trees_;
  expect_deeper(known);
}

// A drafter that is seldom deep would never learn that depth pays: slowly the rows below the known ones come to look as
// likely as the last known one.
void StepWidth::expect_deeper(int known) {
  const auto gain = [&](int n) { return n > 1 ? model_accepted_[n] - model_accepted_[n - 1] : 1; };
  double expected = model_accepted_[known], last = gain(known);
  const double chance = known > 1 && gain(known - 1) > 0 ? std::clamp(last / gain(known - 1), 0.0, 1.0) : 0;
  for (int n = known + 1; n <= kMaxTree; ++n) {
    expected += last *= chance;
    model_accepted_[n] += (expected - model_accepted_[n]) * kDeeperMean;
    model_accepted_[n] = std::max(model_accepted_[n], model_accepted_[n - 1]);
  }
}

double StepWidth::time_of_rows(int rows) const { return costs_.append.empty() ? 1 : append_time(tile_of(rows)); }

void StepWidth::verified(const Draft& model, int rows) {
  LB_ASSERT(rows_ahead_ >= rows);
  const Draft rescored = acceptance_[kFromModel].rescored(model);
  learn_size(rescored);
  budget_ > 0 ? set_tree(rescored, rows, 0, 1) : set_tree(rescored, rows, draft_time(draft_depth_), time_of_rows(rows));
  follow(kFromModel, model);
}

bool StepWidth::draft_may_run_ahead() const {
  if (rows_ahead_ == 0 || budget_ > 0) return rows_ahead_ > 0;
  return credit_ >= 2 * (draft_time(draft_depth_) + time_of_rows(rows_ahead_) - 1);
}

void StepWidth::drop_draft() {
  if (budget_ == 0) credit_ -= draft_time(draft_depth_);
}

const Draft& StepWidth::tree(const Draft* model) {
  LB_ASSERT(kind_ != StepKind::kPlain && (model != nullptr) == (kind_ == StepKind::kModel));
  Draft best = corrected_suffix_;
  double before = 0;
  if (model != nullptr) {
    const Draft corrected = acceptance_[kFromModel].corrected(*model);
    learn_size(corrected);
    best = merge(best, corrected);
    before = draft_time(draft_depth_);
  }
  const int rows = std::min(best.rows, max_rows_);
  if (budget_ > 0) {
    set_tree(best, std::min(rows, budget_ + 1), 0, 1);
  } else {
    const auto accepted = expected_tokens(best);
    const Width width =
        rows > 1 ? best_width(rows, [&](int) { return before; }, [&](int n) { return accepted[n]; }) : Width{};
    const bool is_worth_it = is_trial_ || width.rate() > 1 / (before + 1);
    if (width.rows == 0 || !is_worth_it) {
      set_tree(best, 0, before, 1);
    } else {
      set_tree(best, width.rows, before, width.append);
    }
  }
  if (suffix_.rows > 1) follow(kFromSuffix, suffix_);
  if (model != nullptr) follow(kFromModel, *model);
  return tree_;
}

// Finds the nodes of a source's draft in the tree.
void StepWidth::follow(Source source, const Draft& draft) {
  std::array<int, kMaxTree> row;  // of the draft's nodes in tree_; -1: left out
  row[0] = 0;
  for (int i = 1; i < draft.rows; ++i) {
    const int parent = row[draft.parents[i]];
    row[i] = -1;
    for (int r = parent + 1; parent >= 0 && r < tree_.rows && row[i] < 0; ++r)
      if (tree_.parents[r] == parent && tree_.tokens[r] == draft.tokens[i]) row[i] = r;
    if (row[i] >= 0) followed_[source].push_back({conditional(draft, i), row[i]});
  }
}

void StepWidth::record(std::span<const int32_t> path) {
  uint64_t accepted = 0;
  for (const int32_t row : path) {
    LB_ASSERT(row >= 0 && row < tree_.rows);
    accepted |= uint64_t(1) << row;
  }
  const double emitted = std::max<double>(1, path.size());
  credit_ = std::min(kMaxCredit, credit_ + kShare * emitted + emitted - time_);
  is_after_plain_ = tree_.rows < 2;

  for (const Source source : {kFromSuffix, kFromModel}) {
    Trial& trial = trials_[source];
    if (!uses(source)) {
      trial.waited += time_;
      continue;
    }
    const bool is_tried = is_trial_ && source == (kind_ == StepKind::kModel ? kFromModel : kFromSuffix);
    trial.waited = 0;
    trial.gain = is_tried ? std::max(0.0, trial.gain + emitted - time_ * bar_) : 0;
    if (tree_.rows < 2) continue;
    std::array<Acceptance::Node, kMaxTree> nodes;
    int n = 0;
    for (const Followed& node : followed_[source])
      if (accepted >> tree_.parents[node.row] & 1)
        nodes[n++] = {node.drafted, tree_.depths[node.row], (accepted >> node.row & 1) != 0};
    acceptance_[source].learn({nodes.data(), size_t(n)});
  }
}

}  // namespace lb
