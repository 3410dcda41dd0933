// If steps run ahead of the host, several tokens are timed together: the pipeline stall that a verify causes is part of
// its cost, sometimes most of it.
#include "engine/step_cost_meter.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <numeric>

namespace lb {
namespace {

constexpr int kCostRuns = 3, kPlainRuns = 8;
constexpr int kTokensAhead = 4;     // plain tokens per timed run, if steps run ahead of the host
constexpr double kEnoughMs = 150;   // total time of the runs for one cost
constexpr double kBudgetMs = 1000;  // budget for all costs; beyond it, wider trees are extrapolated
constexpr double kNeverPays = 12;   // plain tokens: a slower verify never pays, as drafts rarely have more accepted
// Row tiles of the skinny GEMMs, on CPUs and on GPUs.
constexpr int kCostRows[] = {2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64};

using Clock = std::chrono::steady_clock;

double elapsed_ms(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

// The smallest id that does not occur in the text, so a repeating text is unlikely to continue with it.
int32_t unlikely_token(std::span<const int32_t> text) {
  int32_t id = 0;
  while (std::ranges::find(text, id) != text.end()) ++id;
  return id;
}

}  // namespace

StepCostMeter::StepCostMeter(Session& session)
    : session_(session), greedy_({}, session.engine().model().info().vocab) {}

StepCosts StepCostMeter::measure() {
  costs_.plain_ms = plain_ms();
  session_.at_rest();
  costs_.append = append_costs();
  session_.at_rest();
  if (session_.engine().draft_model() != nullptr) measure_drafts();
  session_.at_rest().reset();
  session_.speculator_.forget_counts();
  return costs_;
}

double StepCostMeter::measure_plain() {
  const double ms = plain_ms();
  session_.at_rest().reset();
  session_.speculator_.forget_counts();
  return ms;
}

// At least two runs: another process may delay the first.
double StepCostMeter::time(int n, const Work& work, const Work& before) {
  double best = std::numeric_limits<double>::infinity(), sum = 0;
  for (int i = 0; i < n && (i < 2 || sum < kEnoughMs); ++i) {
    if (before) before(), session_.wait();
    const Clock::time_point start = Clock::now();
    work();
    session_.wait();
    const double ms = elapsed_ms(start);
    best = std::min(best, ms);
    sum += ms;
  }
  return best;
}

void StepCostMeter::restart() {
  written_ = {0};
  decode(2);  // the first token takes a different path through sample()
}

void StepCostMeter::decode(int n) {
  for (; n > 0; --n) {
    session_.sync(written_);
    written_.push_back(session_.sample(greedy_));
  }
}

double StepCostMeter::plain_ms() {
  restart();
  if (session_.loop_ == nullptr) return time(kPlainRuns, [&] { decode(1); });
  const double ms = time(kPlainRuns, [&] { decode(kTokensAhead); }, [&] { restart(); }) / kTokensAhead;
  restart();
  return ms;
}

std::vector<StepCosts::Append> StepCostMeter::append_costs() {
  const SequenceState& state = session_.timeline_.state();
  const int max_rows = std::min(session_.speculator_.max_tree_rows(), state.capacity() - state.n_tokens());
  const Clock::time_point start = Clock::now();
  std::vector<StepCosts::Append> costs;
  for (const int rows : kCostRows) {
    const size_t n = costs.size();
    const auto never_pays = [&](size_t i) { return costs[i].ms > kNeverPays * costs_.plain_ms; };
    if (rows > max_rows || (n >= 2 && never_pays(n - 1) && never_pays(n - 2))) break;
    if (n >= 2 && elapsed_ms(start) > kBudgetMs) {
      const StepCosts::Append& last = costs.back();
      const double row_ms = std::max(0.0, last.ms - costs_.plain_ms) / (last.rows - 1);
      costs.push_back({rows, last.ms + row_ms * (rows - last.rows)});
      continue;
    }
    costs.push_back({rows, session_.loop_ != nullptr ? step_ms(rows) : verify_ms(rows)});
  }
  // Times must not decrease with rows: if a smaller append took longer, its run was delayed.
  for (size_t i = costs.size(); i-- > 1;) costs[i - 1].ms = std::min(costs[i - 1].ms, costs[i].ms);
  return costs;
}

double StepCostMeter::verify_ms(int rows) {
  Timeline& timeline = session_.timeline_;
  const std::vector<int32_t> ids(rows, 0);
  return time(kCostRuns, [&] {
    const std::lock_guard lock(timeline.turn());
    timeline.compute(ids, {}, {});
    timeline.head(session_.engine().buffers(), 0, rows, session_.speculator_.logits());
    timeline.state().commit({});
  });
}

// Times a verify between plain tokens, with no accepted draft.
double StepCostMeter::step_ms(int rows) {
  std::vector<int32_t> parents(rows - 1);
  std::iota(parents.begin(), parents.end(), -1);
  const auto before = [&] {
    const int longest = static_cast<int>(written_.size()) + kMaxTree + kTokensAhead;
    longest < session_.timeline_.context() ? decode(1) : restart();
    const std::vector<int32_t> drafts(rows - 1, unlikely_token(written_));
    session_.speculator_.suggest(drafts, parents);
  };
  return std::max(costs_.plain_ms, time(kCostRuns, [&] { decode(2); }, before) - costs_.plain_ms);
}

double StepCostMeter::draft_ms(int depth) {
  ModelDrafter& model = *session_.speculator_.drafters_.model;
  return time(kCostRuns, [&] {
    if (!model.start({{}, 0, 0, depth + 1, depth})) return;
    const std::lock_guard lock(session_.timeline_.turn());
    for (const int i : session_.engine().drafting_shards()) model.grow(i, session_.speculator_.max_tree_rows(), 1);
  });
}

void StepCostMeter::measure_drafts() {
  const int max_rows = session_.speculator_.max_tree_rows();
  const int depth = session_.speculator_.drafters_.model->depth(max_rows, kMaxTree);
  costs_.draft_ms = draft_ms(depth);
  if (session_.engine().draft_model()->is_sequential() && depth > 1) {
    costs_.draft_depth = depth;
    costs_.first_ms = std::min(costs_.draft_ms, draft_ms(1));
  }
  const auto decode_twice = [&] { decode(2); };  // the second step is pending and has no row yet
  if (!session_.timeline_.step_rings().empty())
    costs_.context_ms = time(kCostRuns, [&] { session_.at_rest(); }, decode_twice);
}

}  // namespace lb
