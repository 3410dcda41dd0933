// Speculation: a tree of drafted tokens is verified in one append, and the sampler walks it. Each token is drawn from
// the target's own logits after the tokens before it, so a draft changes how much is computed at once, not the text.
#include <algorithm>
#include <chrono>
#include <limits>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "engine/session.h"
#include "ops/draft_rules.h"

namespace lb {
namespace {

constexpr int kCostRuns = 3, kPlainRuns = 8;
constexpr int kTokensAhead = 4;     // plain tokens of a run, where steps run ahead of the host
constexpr double kEnoughMs = 150;   // of runs of one cost
constexpr double kBudgetMs = 1000;  // of all of them; the times of wider trees are then extrapolated
constexpr double kNeverPays = 12;  // plain tokens whose time a verify may take: drafts of more accepted tokens are rare
// Tiles of the products with few rows, on CPUs and on GPUs.
constexpr int kCostRows[] = {2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64};

using Clock = std::chrono::steady_clock;

double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

}  // namespace

bool Session::drafts() const { return suggested_.rows > 0 || (drafting_ && width_.has_value()); }

int Session::max_tree_rows() const { return std::min(engine_->options().tree_rows(), engine_->executor().max_rows); }

// Rows of a tree that fit behind the timeline, the root's among them.
int Session::draft_room() const { return std::min(max_tree_rows(), state_.room()); }

bool Session::extends_by_one(std::span<const int32_t> ids) const {
  return !tokens_.empty() && ids.size() == tokens_.size() + 1 &&
         std::equal(tokens_.begin(), tokens_.end(), ids.begin());
}

void Session::suggest(std::span<const int32_t> tokens, std::span<const int32_t> parents) {
  engine_->check_ids(tokens);
  LB_CHECK(tree_.logits != nullptr, kUnsupported, "the engine was opened without speculation");
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

// Synthetic weights hardly prefer any token, so their trees would be one or two levels deep. A replay needs long paths:
// the likeliest token of each depth counts as certain.
void Session::replay(std::span<const int64_t> by_length, uint64_t seed) {
  replay_.reset();
  if (by_length.empty()) return;
  replay_.emplace(by_length, seed);
  if (tree_.replay_logprobs == nullptr) return;
  const int k = engine_->draft_model()->n_candidates(), n = engine_->draft_model()->max_depth() * k;
  std::array<float, kMaxTree * kMaxTopTokens> logprobs;
  for (int i = 0; i < n; ++i) logprobs[i] = -float(i % k);
  const std::lock_guard lock(engine_->executor().mutex);
  state_.stream().upload(tree_.replay_logprobs, logprobs.data(), n * sizeof(float));
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
  if (draft_is_ahead_ && ids.back() != sampled_) return false;
  know_tree();
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
  logits_in_ = LogitsIn::kRow;
  tree_row_ = row;
  row_logits_ = tree_.logits + row * logits_.size();
  sampled_ = -1;
}

void Session::expect(std::span<const int32_t> text) {
  engine_->check_ids(text.first(std::min(text.size(), static_cast<size_t>(context()))));
  if (suffix_ != nullptr) suffix_->expect(text);
}

void Session::remember(std::span<const int32_t> output) {
  if (outputs_ != nullptr) outputs_->add(output);
}

void Session::share_outputs(std::shared_ptr<EarlierOutputs> outputs) {
  if (suffix_ == nullptr) return;
  outputs_ = outputs != nullptr ? std::move(outputs) : engine_->outputs();
  suffix_->set_outputs(outputs_);
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

// Whether the tree is worth a verify: in walk_.draft(), or for the device to grow. has_draft: its candidates are in
// tree_ already.
bool Session::propose(int32_t root, int max_rows, bool has_draft, const Company& beside) {
  Draft& draft = walk_.draft();
  width_chose_ = false;
  tree_is_known_ = true;
  draft.rows = 0;
  if (suggested_.rows > 0) {
    draft = suggested_;
    suggested_.rows = 0;
    draft.tokens[0] = root;
    draft.rows = std::min(draft.rows, max_rows);
    return draft.rows > 1;
  }
  const Draft suffix = propose_by_suffix(root, max_rows);
  parts_.end(StepPart::kDraft);
  const Clock::time_point start = Clock::now();
  width_chose_ = true;
  switch (width_->choose(suffix, max_rows, beside)) {
    case StepKind::kPlain: break;
    case StepKind::kSuffix: draft = width_->tree(); break;
    case StepKind::kModel:
      drafting::start(draft, root);
      if (!std::exchange(has_draft, false) && !propose_by_model(root, max_rows)) {
        draft = width_->tree(&draft);
      } else if (loop_ != nullptr && runs_ahead_ && width_->rows_ahead() > 1) {
        tree_is_known_ = false;
        draft.rows = std::min(width_->rows_ahead(), max_tree(max_rows, sent_depth_));
      } else {
        const Draft grown = grown_tree(max_rows);
        if (loop_ == nullptr) width_->drafted(ms_since(start));
        draft = width_->tree(&grown);
      }
  }
  if (has_draft) width_->drop_draft();
  if (draft.rows > 1) return true;
  width_->record({});
  return false;
}

// Levels of the draft model's next tree.
int Session::draft_depth(int max_rows) const {
  return std::min({engine_->draft_model()->max_depth(), max_rows - 1, width_ ? width_->draft_depth() : kMaxTree});
}

// Rows of the draft model's tree: all of its candidates, or max_rows.
int Session::max_tree(int max_rows, int depth) const {
  const int k = engine_->draft_model()->n_candidates();
  long rows = 1, level = 1;
  for (; depth > 0 && rows < max_rows; --depth) rows += level *= k;
  return static_cast<int>(std::min<long>(rows, max_rows));
}

// Leaves the candidates of the draft below the root in tree_.ids. The draft model reads the root and what the state
// holds of the tokens before it.
bool Session::propose_by_model(int32_t root, int max_rows) {
  const int end = state_.n_tokens() + engine_->draft_model()->max_depth() + 1;
  const std::lock_guard lock(engine_->executor().mutex);
  if (end > state_.capacity() || !state_.reserve(end)) return false;
  start_draft(root, max_rows);
  return true;
}

void Session::start_draft(int32_t root, int max_rows) {
  const int n_past = state_.n_tokens(), n_positions = engine_->draft_model()->max_depth() + 1;
  Stream& stream = state_.stream();
  settle_step_rows();
  state_.begin_draft(n_positions);
  stream.upload(tree_.root.token, &root, sizeof root);
  for (int axis = 0; axis < 3; ++axis)
    for (int r = 0; r < n_positions; ++r) positions_[axis * n_positions + r] = n_past + r;
  stream.upload(tree_.root.positions, positions_.data(), 3 * n_positions * sizeof(int32_t));
  send_draft(draft_depth(max_rows));
  parts_.end(StepPart::kDraft);
}

void Session::send_draft(int depth) {
  sent_depth_ = depth;
  Stream& stream = state_.stream();
  stream.replay(draft_recordings_[depth], [&] {
    DraftWorkspace workspace = engine_->executor().draft;
    workspace.ids = tree_.ids;
    workspace.logprobs = tree_.logprobs;
    engine_->draft_model()->propose(tree_.root, depth, state_, workspace, engine_->options().activations, stream);
  });
}

// Grows the tree of up to max_rows rows below the root, and the positions of its first `rows` rows.
void Session::grow_tree(int max_rows, int rows) {
  Draft& tree = *tree_.tree;
  run(GrowTree{.ids = tree_.ids,
               .logprobs = replay_ ? tree_.replay_logprobs : tree_.logprobs,
               .root = tree_.root.token,
               .n_past = state_.n_past(),
               .n_rows = &tree.rows,
               .tokens = tree.tokens,
               .parents = tree.parents,
               .depths = tree.depths,
               .scores = tree.scores,
               .ancestors = tree.ancestors,
               .positions = tree_.positions,
               .sequences = 1,
               .depth = std::min(sent_depth_, max_rows - 1),
               .k = engine_->draft_model()->n_candidates(),
               .max_rows = max_rows,
               .rows = rows},
      state_.stream());
}

// The draft model's tree, on the host.
Draft Session::grown_tree(int max_rows) {
  const std::lock_guard lock(engine_->executor().mutex);
  Draft tree;
  grow_tree(max_rows, 1);
  state_.stream().download(&tree, tree_.tree, sizeof tree);
  return tree;
}

// Waits for the tree that the device has grown.
void Session::know_tree() {
  if (tree_is_known_) return;
  state_.stream().wait();
  read_tree();
}

// The device has grown the tree and chosen a token from its logits.
void Session::read_tree() {
  if (tree_is_known_) return;
  Draft& draft = walk_.draft();
  const int rows = draft.rows;
  draft = loop_->fetched();
  width_->verified(draft, rows);
  draft.rows = rows;
  tree_is_known_ = true;
}

bool Session::verify_draft(std::span<const int32_t> ids, const Interrupted& interrupted) {
  if (step_pending_ || !extends_by_one(ids)) return false;
  if (device_walks_) drop_choices();  // it walks another way
  end_walk(true);
  return start_tree(ids.back(), false, interrupted) && adopt_tree(ids);
}

bool Session::start_tree(int32_t root, bool has_draft, const Interrupted& interrupted) {
  const int max_rows = draft_room();
  if (!drafts() || max_rows < 2) return false;
  parts_.start();
  const bool is_proposed = propose(root, max_rows, has_draft);
  parts_.end(StepPart::kTree);
  if (!is_proposed) return false;
  walk_.set_replay_depth(replay_ ? replay_->next() : -1);
  const Draft& draft = walk_.draft();
  const std::lock_guard lock(engine_->executor().mutex);
  has_logits_ = false;
  const Clock::time_point start = Clock::now();
  run_rows(
      draft.rows, true,
      [&](Stream& stream, const RowInputs& to) { tree_is_known_ ? upload_tree(stream, to) : start_growing(max_rows); },
      interrupted, nullptr);
  head(engine_->executor(), 0, draft.rows, tree_.logits);
  if (width_chose_ && loop_ == nullptr) width_->took(draft.rows, ms_since(start));  // the CPU has finished
  parts_.end(StepPart::kVerify);
  draft_counts_.verified += 1;
  draft_counts_.drafted += draft.rows - 1;
  tree_pending_ = true;
  return true;
}

void Session::upload_tree(Stream& stream, const RowInputs& to) {
  const Draft& draft = walk_.draft();
  const int n_past = state_.n_tokens();
  for (int axis = 0; axis < 3; ++axis)
    for (int r = 0; r < draft.rows; ++r) positions_[axis * draft.rows + r] = n_past + draft.depths[r];
  stream.upload(tree_.tree, &draft, sizeof draft);
  stream.upload(to.positions, positions_.data(), 3 * draft.rows * sizeof(int32_t));
}

void Session::start_growing(int max_rows) {
  grow_tree(max_rows, walk_.draft().rows);
  loop_->fetch(tree_.tree);
  parts_.end(StepPart::kTree);
}

void Session::end_walk(bool is_whole) {
  device_walks_ = false;
  const bool draft_was_ahead = draft_is_ahead_;
  draft_is_ahead_ = false;
  if (!walk_.is_active() && !tree_pending_) return;
  if (is_whole && width_chose_) know_tree();
  const std::lock_guard lock(engine_->executor().mutex);
  const int n_layers = static_cast<int>(state_.layers().size());
  parts_.start();
  state_.commit(walk_.path(), draft_was_ahead ? engine_->model().info().n_layers : n_layers);
  parts_.end(StepPart::kWalk);
  if (walk_.is_active()) draft_counts_.by_length[walk_.path().size() - 1] += 1;
  if (is_whole && width_chose_) width_->record(walk_.path());
  walk_.end();
  tree_pending_ = false;
}

// --- costs

namespace {

// The smallest id that a text lacks: a repeating text goes on without it.
int32_t unlikely_token(std::span<const int32_t> text) {
  int32_t id = 0;
  while (std::ranges::find(text, id) != text.end()) ++id;
  return id;
}

}  // namespace

// Milliseconds of the fastest of up to n runs, at least two: another process may hold up the first. before: runs ahead
// of each and is not timed.
double Session::time(int n, const Work& work, const Work& before) {
  double best = std::numeric_limits<double>::infinity(), sum = 0;
  for (int i = 0; i < n && (i < 2 || sum < kEnoughMs); ++i) {
    if (before) before(), state_.stream().wait();
    const Clock::time_point start = Clock::now();
    work();
    state_.stream().wait();
    const double ms = ms_since(start);
    best = std::min(best, ms);
    sum += ms;
  }
  return best;
}

// The session is empty, and is empty again afterwards. Where steps run ahead of the host, those of several are timed as
// one: what a verify holds up is part of its cost, and may be most of it.
StepCosts Session::measure_step_costs() {
  StepCosts costs;
  Sampler greedy({}, engine_->model().info().vocab);
  std::vector<int32_t> written;
  const auto decode = [&](int n) {
    for (; n > 0; --n) {
      sync(written);
      written.push_back(sample(greedy));
    }
  };
  const auto restart = [&] {
    written = {0};
    decode(2);  // the first token takes other ways
  };
  restart();
  if (loop_ != nullptr) {
    costs.plain_ms = time(kPlainRuns, [&] { decode(kTokensAhead); }, restart) / kTokensAhead;
    restart();
  } else {
    costs.plain_ms = time(kPlainRuns, [&] { decode(1); });
  }
  drop_step();
  const std::vector<int32_t> ids(kMaxTree, 0);
  const auto verify_ms = [&](int rows) {
    return time(kCostRuns, [&] {
      const std::lock_guard lock(engine_->executor().mutex);
      run_append(std::span(ids).first(rows), {}, {}, nullptr);
      head(engine_->executor(), 0, rows, tree_.logits);
      state_.commit({});
    });
  };
  // A verify between plain tokens, none of whose drafts is accepted.
  const auto step_ms = [&](int rows) {
    std::vector<int32_t> parents(rows - 1);
    std::iota(parents.begin(), parents.end(), -1);
    const Work before = [&] {
      const bool has_room = static_cast<int>(written.size()) + kMaxTree + kTokensAhead < context();
      has_room ? decode(1) : restart();
      const std::vector<int32_t> drafts(rows - 1, unlikely_token(written));
      suggest(drafts, parents);
    };
    return std::max(costs.plain_ms, time(kCostRuns, [&] { decode(2); }, before) - costs.plain_ms);
  };
  const int max_rows = std::min(max_tree_rows(), state_.capacity() - state_.n_tokens());
  const Clock::time_point start = Clock::now();
  for (const int rows : kCostRows) {
    const size_t n = costs.append.size();
    const auto never_pays = [&](size_t i) { return costs.append[i].ms > kNeverPays * costs.plain_ms; };
    if (rows > max_rows || (n >= 2 && never_pays(n - 1) && never_pays(n - 2))) break;
    if (n >= 2 && ms_since(start) > kBudgetMs) {
      const StepCosts::Append& last = costs.append.back();
      const double row_ms = std::max(0.0, last.ms - costs.plain_ms) / (last.rows - 1);
      costs.append.push_back({rows, last.ms + row_ms * (rows - last.rows)});
      continue;
    }
    costs.append.push_back({rows, loop_ != nullptr ? step_ms(rows) : verify_ms(rows)});
  }
  drop_step();
  // More rows take no less time: a longer one was held up.
  for (size_t i = costs.append.size(); i-- > 1;)
    costs.append[i - 1].ms = std::min(costs.append[i - 1].ms, costs.append[i].ms);
  if (engine_->draft_model() != nullptr) {
    const auto draft_ms = [&](int depth) {
      return time(kCostRuns, [&] {
        if (!propose_by_model(0, depth + 1)) return;
        const std::lock_guard lock(engine_->executor().mutex);
        grow_tree(max_tree_rows(), 1);
      });
    };
    const int depth = draft_depth(max_tree_rows());
    costs.draft_ms = draft_ms(depth);
    if (engine_->draft_model()->is_sequential() && depth > 1) {
      costs.draft_depth = depth;
      costs.first_ms = std::min(costs.draft_ms, draft_ms(1));
    }
    const Work decode_twice = [&] { decode(2); };  // the second step is pending, and has no row yet
    if (step_rows_) costs.context_ms = time(kCostRuns, [&] { drop_step(); }, decode_twice);
  }
  reset();
  draft_counts_ = {};
  return costs;
}

void Session::time_prefill(int rows, const Work& work) {
  const Clock::time_point start = Clock::now();
  work();
  if (!width_) return;
  if (rows > 1) {
    width_->start_sequence(loop_ == nullptr);
  } else if (loop_ == nullptr) {
    width_->took(1, ms_since(start));
  }
}

// Whether the device may accept its path and draft below the path's end, without the host.
bool Session::can_draft_ahead() {
  if (tree_row_ != 0 || tree_is_known_ || !width_->draft_may_run_ahead()) return false;
  const int n_longest = state_.n_tokens() + sent_depth_ + 1;
  const int end = n_longest + engine_->draft_model()->max_depth() + 1;
  return end <= context() && state_.reserve(end);
}

// Where the device accepts its path and leaves what a draft below the path's end reads.
AcceptPath Session::accepted_by_device() const {
  AppendNumbers& numbers = *state_.numbers();
  return {.n_before = tree_.n_before,
          .n_past = &numbers.n_past,
          .key_buffer = &numbers.key_buffer,
          .n_accepted = &numbers.n_accepted,
          .accepted = numbers.accepted,
          .root = tree_.root.token,
          .positions = tree_.root.positions,
          .n_positions = engine_->draft_model()->max_depth() + 1};
}

void Session::start_walk(const Sampler& sampler, const AcceptPath& accept) {
  const VerifiedTree tree{.draft = tree_.tree,
                          .logits = tree_.logits,
                          .rows = walk_.draft().rows,
                          .first = tree_row_,
                          .replay_length = walk_.replay_length(tree_row_),
                          .accept = accept};
  parts_.start();
  loop_->start_walk(sampler, tree, loop_sampler_ == sampler.version());
  parts_.end(StepPart::kWalk);
  loop_sampler_ = sampler.version();
}

// Starts the device's walk from the row of the current logits. The caller holds the executor's lock.
void Session::walk_on_device(const Sampler& sampler) {
  draft_is_ahead_ = can_draft_ahead();
  start_walk(sampler, draft_is_ahead_ ? accepted_by_device() : AcceptPath{});
  device_walks_ = true;
  if (!draft_is_ahead_) return;
  state_.send_moves(engine_->model().info().n_layers, static_cast<int>(state_.layers().size()), tree_.n_before);
  parts_.end(StepPart::kWalk);
  send_draft(draft_depth(max_tree_rows()));
  parts_.end(StepPart::kDraft);
}

// Chooses a token from the current row, on the device. The caller holds the executor's lock.
void Session::choose_from_row(const Sampler& sampler) {
  loop_->sample_row(sampler, row_logits_, loop_sampler_ != 0);
  loop_sampler_ = sampler.version();
}

// Likewise in a tree; true: the token leaves it. Without a mask the device walks the tree by itself, and the host
// follows. Where another sampler or a mask takes over after the device has drafted ahead, its token leaves the tree.
bool Session::start_choice_in_tree(const Sampler& sampler) {
  was_masked_ = !sampler.mask().empty();
  const bool is_bound = loop_sampler_ == sampler.version();
  if (is_bound && (choice_started_ || (device_walks_ && !was_masked_))) return false;
  const std::lock_guard lock(engine_->executor().mutex);
  if (device_walks_ || !is_bound) forget_sampler();  // the device's sampler has gone another way
  device_walks_ = false;
  const bool leaves = draft_is_ahead_;
  if (was_masked_ || leaves) {
    choose_from_row(sampler);
    choice_started_ = true;
  } else {
    walk_on_device(sampler);
  }
  return leaves;
}

int32_t Session::sample_in_tree(Sampler& sampler) {
  const bool leaves = start_choice_in_tree(sampler);
  choice_started_ = false;
  empty_if_step_lost([&] { sampled_ = loop_->take(); });
  sampler.record(sampled_);
  has_logits_ = false;
  read_tree();
  if (leaves || walk_.child(sampled_) < 0) {
    const bool has_draft = draft_is_ahead_ && !leaves;
    end_walk(!leaves);
    if (runs_ahead_) start_next(sampler, has_draft);
  }
  return sampled_;
}

// Starts what computes the token sampled last, before the caller has it: a tree, or else a plain step. has_draft: the
// device has drafted below that token.
void Session::start_next(const Sampler& sampler, bool has_draft) {
  drafts_pay_ = start_tree(sampled_, has_draft, {});
  if (!drafts_pay_) return start_step(NumbersFrom::kHost, was_masked_);
  if (was_masked_) return;
  const std::lock_guard lock(engine_->executor().mutex);
  tree_row_ = 0;
  walk_on_device(sampler);
}

}  // namespace lb
