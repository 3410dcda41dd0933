#include "speculation/step_times.h"

#include <algorithm>

#include "base/error.h"
#include "ops/append.h"

namespace lb {
namespace {

// Weight of the newest time. Interference only ever slows a step down, so lower times weigh more.
constexpr double kSlowerMean = 1.0 / 8, kFasterMean = 1.0 / 2;
constexpr double kMaxChange = 2;  // largest change of a time in one step, as a factor
// A sequence begins with plain tokens; the fastest one sets the scale of all times, because the first finds cold
// caches. An overestimated plain time makes drafts look better and would never be corrected, so a plain token is timed
// again every kPlainEvery steps.
constexpr int kFirstPlain = 3, kPlainEvery = 48;

}  // namespace

StepTimes::StepTimes() {
  costs_.append.reserve(kMaxTree);
  ratios_.reserve(kMaxTree);
}

void StepTimes::set_costs(const StepCosts& costs) {
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

void StepTimes::start_sequence(bool is_timed) {
  ratios_.assign(costs_.append.size() + 1, 0);
  ratio_ = 1;
  draft_ratio_ = 0;
  since_plain_ = n_plain_ = 0;
  is_after_plain_ = false;
  is_timed_ = is_timed && learns();
}

// Limits the effect of a step that another process delayed.
double StepTimes::mean_ratio(double mean, bool has_mean, double newest) {
  const double likely = std::clamp(newest, mean / kMaxChange, mean * kMaxChange);
  return mean + (likely - mean) * (likely > mean && has_mean ? kSlowerMean : kFasterMean);
}

void StepTimes::add_draft_time(int depth, double ms) {
  const double expected = draft_ms(depth);
  if (!is_timed_ || expected <= 0) return;
  const bool has_mean = draft_ratio_ > 0;
  draft_ratio_ = mean_ratio(has_mean ? draft_ratio_ : ratio_, has_mean, ms / expected);
}

void StepTimes::add_step_time(int rows, double ms) {
  const size_t tile = tile_of(rows), i = rows > 1 ? tile + 1 : 0;
  const double now = ms / (rows > 1 ? costs_.append[tile].ms : costs_.plain_ms);
  since_plain_ = rows > 1 ? since_plain_ + 1 : 0;
  if (rows == 1 && n_plain_ < kFirstPlain) {
    ratios_[0] = n_plain_++ > 0 ? std::min(ratios_[0], now) : now;
  } else {
    ratios_[i] = mean_ratio(ratio(i), ratios_[i] > 0, now);
  }
  ratio_ = ratios_[i];
}

void StepTimes::add_pass_time(int rows, double ms) {
  const double now = std::max(0.0, ms - append_ms(tile_of(rows))) / others_;
  sequence_ms_ += (now - sequence_ms_) * (now > sequence_ms_ && sequence_ms_ > 0 ? kSlowerMean : kFasterMean);
}

bool StepTimes::wants_plain() const {
  return is_timed_ && others_ == 0 && (n_plain_ < kFirstPlain || since_plain_ >= kPlainEvery);
}

size_t StepTimes::tile_of(int rows) const {
  size_t tile = 0;
  while (tile + 1 < costs_.append.size() && costs_.append[tile].rows < rows) ++tile;
  return tile;
}

int StepTimes::depth_of_rows(int rows) const {
  return costs_.draft_depth > 0 ? std::clamp(rows - 1, 1, costs_.draft_depth) : kMaxTree;
}

double StepTimes::draft_ms(int depth) const {
  double ms = costs_.draft_ms;
  if (depth < costs_.draft_depth)
    ms -= (ms - costs_.first_ms) * (costs_.draft_depth - depth) / (costs_.draft_depth - 1);
  return ms + (is_after_plain_ ? costs_.context_ms : 0);
}

double StepTimes::draft_time(int depth) const {
  return in_tokens(draft_ms(depth) * (draft_ratio_ > 0 ? draft_ratio_ : ratio_));
}

}  // namespace lb
