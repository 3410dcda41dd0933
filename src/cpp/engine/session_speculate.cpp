// Speculation: a tree of drafted tokens is verified in one append, and the sampler walks it. Each token is drawn from
// the target's own logits after the tokens before it, so a draft changes how much is computed at once, not the text.
#include <algorithm>
#include <chrono>
#include <limits>

#include "base/error.h"
#include "engine/session.h"
#include "ops/draft_rules.h"

namespace lb {
namespace {

constexpr int kCostRuns = 3, kPlainRuns = 8;
constexpr double kNeverPays = 12;  // plain tokens whose time a verify may take: drafts of more accepted tokens are rare
// Tiles of the products with few rows, on CPUs and on GPUs.
constexpr int kCostRows[] = {2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64};

}  // namespace

bool Session::drafts() const { return suggested_.rows > 0 || (drafting_ && width_.has_value()); }

int Session::max_tree_rows() const { return std::min(engine_->options().tree_rows(), engine_->executor().max_rows); }

// Rows of a tree that fit behind the timeline, the root's among them.
int Session::draft_room() const { return std::min(max_tree_rows(), context() - static_cast<int>(tokens_.size())); }

bool Session::extends_by_one(std::span<const int32_t> ids) const {
  return !tokens_.empty() && ids.size() == tokens_.size() + 1 &&
         std::equal(tokens_.begin(), tokens_.end(), ids.begin());
}

void Session::suggest(std::span<const int32_t> tokens, std::span<const int32_t> parents) {
  check_ids(tokens);
  LB_CHECK(tree_logits_ != nullptr, kUnsupported, "the engine was opened without speculation");
  LB_CHECK(tokens.size() == parents.size() && tokens.size() < kMaxTree, kInvalid, "a draft has at most ", kMaxTree - 1,
           " tokens and a parent each; got ", tokens.size(), " and ", parents.size());
  suggested_.rows = 0;
  if (tokens.empty()) return;
  drafting::start(suggested_, 0);  // the root's token is not known yet
  for (size_t i = 0; i < tokens.size(); ++i) {
    LB_CHECK(parents[i] >= -1 && parents[i] < static_cast<int32_t>(i), kInvalid, "token ", i,
             " of the draft has parent ", parents[i], "; a parent comes before its children, -1 is the next token");
    drafting::add(suggested_, tokens[i], parents[i] + 1, 0);
  }
}

bool Session::adopt_tree(std::span<const int32_t> ids) {
  if (!tree_pending_ || !extends_by_one(ids) || ids.back() != walk_.draft().tokens[0]) return false;
  tree_pending_ = false;
  walk_.begin();
  enter_row(0);
  return true;
}

bool Session::follow_tree(std::span<const int32_t> ids) {
  if (!walk_.is_active() || !extends_by_one(ids)) return false;
  const int child = walk_.child(ids.back());
  if (child < 0) return false;
  walk_.descend(child);
  draft_counts_.accepted += 1;
  enter_row(child);
  return true;
}

// The row's token joins the timeline, and its logits are the current ones.
void Session::enter_row(int row) {
  tokens_.push_back(walk_.draft().tokens[row]);
  has_logits_ = true;
  logits_in_ = LogitsIn::kTree;
  tree_row_ = row;
  sampled_ = -1;
}

void Session::expect(std::span<const int32_t> text) {
  check_ids(text.first(std::min(text.size(), static_cast<size_t>(context()))));
  if (suffix_ != nullptr) suffix_->expect(text);
}

void Session::remember(std::span<const int32_t> output) {
  if (engine_->outputs() != nullptr) engine_->outputs()->add(output);
}

// A draft of the suffix drafter, after bringing it to the timeline and the root behind it; no rows: none.
Draft Session::propose_by_suffix(int32_t root, int max_rows) {
  if (suffix_ == nullptr) return {};
  const bool last_root_joined = suffix_->n_tokens() == n_indexed_ + 1 &&
                                n_indexed_ < static_cast<int>(tokens_.size()) && tokens_[n_indexed_] == indexed_root_;
  if (last_root_joined) {
    ++n_indexed_;
  } else {
    suffix_->truncate(n_indexed_);
  }
  suffix_->push(std::span(tokens_).subspan(n_indexed_));
  n_indexed_ = static_cast<int>(tokens_.size());
  suffix_->push({&root, 1});
  indexed_root_ = root;
  return suffix_->propose(max_rows).tree;
}

// Whether a draft below the token sampled last would pay.
bool Session::wants_draft() {
  const int max_rows = draft_room();
  if (max_rows < 2) return false;
  if (width_->choose(propose_by_suffix(sampled_, max_rows), max_rows) != StepKind::kPlain) return true;
  width_->record({});
  return false;
}

bool Session::propose(int32_t root) {
  Draft& draft = walk_.draft();
  const int max_rows = draft_room();
  width_chose_ = false;
  if (max_rows < 2) return false;
  if (suggested_.rows > 0) {
    draft = suggested_;
    suggested_.rows = 0;
    draft.tokens[0] = root;
    draft.rows = std::min(draft.rows, max_rows);
    return draft.rows > 1;
  }
  draft = propose_by_suffix(root, max_rows);
  width_chose_ = true;
  switch (width_->choose(draft, max_rows)) {
    case StepKind::kPlain: draft.rows = 0; break;
    case StepKind::kSuffix: draft = width_->tree(); break;
    case StepKind::kModel:
      drafting::start(draft, root);
      propose_by_model(max_rows, draft);
      draft = width_->tree(&draft);
      break;
  }
  if (draft.rows > 1) return true;
  width_->record({});
  return false;
}

// The draft model reads the root and what the state holds of the tokens before it.
void Session::propose_by_model(int max_rows, Draft& draft) {
  const DraftModel& model = *engine_->draft_model();
  const int n_past = state_.n_tokens(), n_positions = model.max_depth() + 1, k = model.n_candidates();
  if (n_past + n_positions > state_.capacity()) return;  // its block would not fit
  const int depth = std::min(model.max_depth(), max_rows - 1);
  const std::lock_guard lock(engine_->executor().mutex);
  const Executor& executor = engine_->executor();
  Stream& stream = *executor.stream;
  state_.begin_draft();
  stream.upload(executor.draft_root, &draft.tokens[0], sizeof(int32_t));
  for (int axis = 0; axis < 3; ++axis)
    for (int r = 0; r < n_positions; ++r) positions_[axis * n_positions + r] = n_past + r;
  stream.upload(executor.draft_positions, positions_.data(), 3 * n_positions * sizeof(int32_t));
  stream.replay(draft_recordings_[depth], [&] {
    model.propose({executor.draft_root, executor.draft_positions}, depth, state_, executor.draft,
                  engine_->options().activations, stream);
  });
  std::array<int32_t, kMaxTree * kMaxTopTokens> ids;
  std::array<float, kMaxTree * kMaxTopTokens> logprobs;
  stream.download(ids.data(), executor.draft.ids, depth * k * sizeof ids[0]);
  stream.download(logprobs.data(), executor.draft.logprobs, depth * k * sizeof logprobs[0]);
  drafting::grow_tree({ids.data(), logprobs.data(), depth, k}, max_rows - 1, draft);
}

bool Session::verify_draft(std::span<const int32_t> ids, const Interrupted& interrupted) {
  if (step_pending_ || !extends_by_one(ids)) return false;
  end_walk(true);
  return start_tree(ids.back(), interrupted) && adopt_tree(ids);
}

bool Session::start_tree(int32_t root, const Interrupted& interrupted) {
  if (!drafts() || !propose(root)) return false;
  const int n_past = state_.n_tokens();
  const Draft& draft = walk_.draft();
  const std::lock_guard lock(engine_->executor().mutex);
  for (int axis = 0; axis < 3; ++axis)
    for (int r = 0; r < draft.rows; ++r) positions_[axis * draft.rows + r] = n_past + draft.depths[r];
  has_logits_ = false;
  forward({draft.tokens, size_t(draft.rows)}, {positions_.data(), 3 * size_t(draft.rows)},
          {draft.parents, draft.ancestors}, interrupted, nullptr);
  head(0, draft.rows, tree_logits_);
  draft_counts_.verified += 1;
  draft_counts_.drafted += draft.rows - 1;
  tree_pending_ = true;
  return true;
}

void Session::end_walk(bool is_whole) {
  device_walks_ = false;
  if (!walk_.is_active() && !tree_pending_) return;
  const std::lock_guard lock(engine_->executor().mutex);
  state_.commit(walk_.path());
  if (walk_.is_active()) draft_counts_.by_length[walk_.path().size() - 1] += 1;
  if (is_whole && width_chose_) width_->record(walk_.path());
  walk_.end();
  tree_pending_ = false;
}

// --- costs

// Milliseconds of the fastest of n runs.
double Session::time(int n, const Work& work) {
  using Clock = std::chrono::steady_clock;
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < n; ++i) {
    const Clock::time_point start = Clock::now();
    work();
    state_.stream().wait();
    best = std::min(best, std::chrono::duration<double, std::milli>(Clock::now() - start).count());
  }
  return best;
}

// The session is empty, and is empty again afterwards.
StepCosts Session::measure_step_costs() {
  StepCosts costs;
  Sampler greedy({}, engine_->model().info().vocab);
  std::vector<int32_t> written = {0};
  const auto decode = [&] {
    sync(written);
    written.push_back(sample(greedy));
  };
  decode();  // the first token takes other ways
  costs.plain_ms = time(kPlainRuns, decode);
  drop_step();
  const std::vector<int32_t> ids(kMaxTree, 0);
  const int max_rows = std::min(max_tree_rows(), state_.capacity() - state_.n_tokens());
  for (const int rows : kCostRows) {
    if (rows > max_rows || (!costs.append.empty() && costs.append.back().ms > kNeverPays * costs.plain_ms)) break;
    costs.append.push_back({rows, time(kCostRuns, [&] {
                              const std::lock_guard lock(engine_->executor().mutex);
                              run_append(std::span(ids).first(rows), {}, {}, nullptr);
                              head(0, rows, tree_logits_);
                              state_.commit({});
                            })});
  }
  if (engine_->draft_model() != nullptr) {
    Draft draft;
    drafting::start(draft, 0);
    costs.draft_ms = time(kCostRuns, [&] {
      draft.rows = 1;
      propose_by_model(max_tree_rows(), draft);
    });
  }
  reset();
  return costs;
}

// Starts the device's walk from the row of the current logits. The caller holds the executor's lock.
void Session::walk_on_device(const Sampler& sampler) {
  loop_->start_walk(sampler, tree_logits_, walk_.draft(), tree_row_, loop_sampler_ == sampler.version());
  loop_sampler_ = sampler.version();
  device_walks_ = true;
}

// Without a mask the device walks the tree by itself, and the host follows.
int32_t Session::sample_in_tree(Sampler& sampler) {
  was_masked_ = !sampler.mask().empty();
  if (!device_walks_ || was_masked_ || loop_sampler_ != sampler.version()) {
    const std::lock_guard lock(engine_->executor().mutex);
    if (device_walks_ || loop_sampler_ != sampler.version()) {
      loop_->drop();  // the device's sampler has gone another way
      loop_sampler_ = 0;
    }
    device_walks_ = false;
    if (was_masked_) {
      loop_->sample_row(sampler, tree_logits_ + tree_row_ * logits_.size(), loop_sampler_ != 0);
      loop_sampler_ = sampler.version();
    } else {
      walk_on_device(sampler);
    }
  }
  empty_if_step_lost([&] { sampled_ = loop_->take(); });
  sampler.record(sampled_);
  has_logits_ = false;
  if (walk_.child(sampled_) < 0) {
    end_walk(true);
    start_next(sampler);
  }
  return sampled_;
}

// Starts what computes the token sampled last, before the caller has it: a tree, or else a plain step.
void Session::start_next(const Sampler& sampler) {
  drafts_pay_ = start_tree(sampled_, {});
  if (!drafts_pay_) return start_step(NumbersFrom::kHost, was_masked_);
  if (was_masked_) return;
  const std::lock_guard lock(engine_->executor().mutex);
  tree_row_ = 0;
  walk_on_device(sampler);
}

}  // namespace lb
