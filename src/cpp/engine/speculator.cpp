#include "engine/speculator.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/error.h"
#include "ops/draft_rules.h"

namespace lb {
namespace {

using Clock = std::chrono::steady_clock;

double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

}  // namespace

Speculator::Speculator(Timeline& timeline, TokenLoop* loop)
    : timeline_(timeline), loop_(loop), parts_(timeline.stream()) {
  const Engine& engine = timeline_.engine();
  memory_.resize(engine.n_shards());
  if (engine.options().tree_rows() == 0) return;
  const std::lock_guard lock(timeline_.turn());
  for (int i = 0; i < engine.n_shards(); ++i) {
    const NetworkPart& part = engine.shards()[i]->part();
    if (!part.is_last()) continue;
    const Model* target = part.has_target ? &engine.model() : nullptr;
    const DraftModel* draft = part.has_draft ? engine.draft_model() : nullptr;
    const size_t bytes = TreeMemory::planned_bytes(target, draft, engine.options());
    Carver carver(*reserved_.emplace_back(timeline_.state().stream_of(i).reserve(bytes)));
    memory_[i] = TreeMemory(carver, target, draft, engine.options());
  }
  for (int i = 0; i < engine.n_shards(); ++i) {
    const TreeMemory& memory = memory_[i];
    const PassBuffers& own = engine.buffers_of(i, engine.buffers());
    logits_.push_back(memory.logits);
    inputs_.push_back(
        memory.tree == nullptr
            ? Timeline::RowInputs{own.tokens, own.positions, own.parents, own.ancestors}
            : Timeline::RowInputs{memory.tree->tokens, memory.positions, memory.tree->parents, memory.tree->ancestors});
  }
  if (engine.draft_model() != nullptr) drafters_.model = std::make_unique<ModelDrafter>(timeline_, memory_);
}

void Speculator::start(const StepCosts& costs) {
  const Engine& engine = timeline_.engine();
  if (engine.options().suffix) {
    auto suffix = std::make_unique<SuffixDrafter>(timeline_.context() + 1, Engine::kExpectedTokens, engine.outputs());
    drafters_.suffix = suffix.get();
    drafters_.from_text.add(std::move(suffix));
  }
  planner_.emplace(costs, drafters_.model != nullptr, engine.options().draft_budget);
  set_sampling(sampling_);
  is_on_ = true;
}

// --- the caller's hints

void Speculator::set_sampling(SamplingKind kind) {
  sampling_ = kind;
  if (!planner_) return;
  planner_->set_experience(timeline_.engine().experiences().newest(kind).value_or(DraftExperience{}));
}

void Speculator::expect(std::span<const int32_t> text) {
  timeline_.engine().check_text(text.first(std::min(text.size(), static_cast<size_t>(timeline_.context()))));
  if (drafters_.suffix != nullptr) drafters_.suffix->expect(text);
}

void Speculator::remember(std::span<const int32_t> output) {
  if (drafters_.suffix != nullptr) drafters_.suffix->outputs()->add(output);
}

void Speculator::share_outputs(std::shared_ptr<EarlierOutputs> outputs) {
  if (drafters_.suffix == nullptr) return;
  drafters_.suffix->set_outputs(outputs != nullptr ? std::move(outputs) : timeline_.engine().outputs());
}

void Speculator::suggest(std::span<const int32_t> tokens, std::span<const int32_t> parents) {
  timeline_.engine().check_text(tokens);
  LB_CHECK(!logits_.empty(), kUnsupported, "the engine was opened without speculation");
  drafters_.suggested.suggest(tokens, parents);
}

// --- propose

int Speculator::max_tree_rows() const {
  const Engine& engine = timeline_.engine();
  const int rows = std::min(engine.options().tree_rows(), engine.buffers().max_rows);
  return engine.decodes_by_row() ? std::min(rows, engine.max_pass_rows()) : rows;
}

int Speculator::room() const { return std::min(max_tree_rows(), timeline_.room()); }

DraftRequest Speculator::request(int32_t root, int max_rows) const {
  return {timeline_.tokens(), timeline_.n_unchanged(), root, max_rows, planner_ ? planner_->draft_depth() : kMaxTree};
}

// No rows: the text drafters propose nothing.
Draft Speculator::draft_from_text(int32_t root, int max_rows) {
  const bool is_there = drafters_.from_text.start(request(root, max_rows));
  timeline_.mark_unchanged();
  const Draft tree = is_there ? drafters_.from_text.tree(max_rows) : Draft{};
  // A match before an image proposes the image, which is no text.
  return std::ranges::any_of(std::span(tree.tokens, tree.rows), is_image_id) ? Draft{} : tree;
}

bool Speculator::pays(int32_t root) {
  const int max_rows = room();
  if (max_rows < 2) return false;
  if (planner_->choose(draft_from_text(root, max_rows), max_rows) != StepKind::kPlain) return true;
  planner_->add_accepted({});
  return false;
}

bool Speculator::propose(int32_t root, const Proposal& options) {
  const int max_rows = std::min(options.max_rows, room());
  if (!is_on() || max_rows < 2) return false;
  parts_.start();
  tree_.max_rows = max_rows;
  const bool is_worth_it = choose_tree(root, max_rows, options);
  parts_.end(StepPart::kTree);
  return is_worth_it;
}

bool Speculator::choose_tree(int32_t root, int max_rows, const Proposal& options) {
  Draft& draft = tree_.walk.draft();
  tree_.is_planned = false;
  tree_.is_known = true;
  if (drafters_.suggested.start(request(root, max_rows))) {
    draft = drafters_.suggested.tree(max_rows);
    return draft.rows > 1;
  }
  const Draft from_text = draft_from_text(root, max_rows);
  parts_.end(StepPart::kDraft);
  tree_.is_planned = true;
  const StepKind kind = planner_->choose(from_text, max_rows, options.others);
  draft.rows = 0;
  if (kind == StepKind::kText) draft = planner_->tree();
  const bool may_grow = options.may_grow && timeline_.engine().grows_trees();
  if (kind == StepKind::kModel) draft = model_tree(root, max_rows, options.has_draft, may_grow);
  if (kind != StepKind::kModel && options.has_draft) planner_->drop_draft();
  if (draft.rows > 1) return true;
  planner_->add_accepted({});
  return false;
}

// The tree to verify in a step with the draft model. A device-grown tree has only a root and a number of rows.
Draft Speculator::model_tree(int32_t root, int max_rows, bool has_draft, bool may_grow) {
  const Clock::time_point start = Clock::now();
  ModelDrafter& model = *drafters_.model;
  Draft alone{};
  drafting::start(alone, root);
  if (!has_draft) {
    // The draft model's rows count tokens. Positions after an image may not.
    const int n = timeline_.state().n_tokens();
    if (timeline_.text_position(n) != n || !model.start(request(root, max_rows))) return planner_->tree(&alone);
    parts_.end(StepPart::kDraft);
  }
  if (loop_ != nullptr && may_grow && planner_->rows_ahead() > 1) {
    tree_.is_known = false;
    alone.rows = std::min(planner_->rows_ahead(), model.max_tree(max_rows, model.sent_depth()));
    return alone;
  }
  const Draft grown = model.tree(max_rows);
  if (loop_ == nullptr) planner_->add_draft_time(ms_since(start));
  return planner_->tree(&grown);
}

void Speculator::propose_root(int32_t root) {
  drafting::start(tree_.walk.draft(), root);
  tree_.is_planned = false;
  tree_.is_known = true;
}

// --- verify

void Speculator::verify(const Interrupted& interrupted) {
  const int rows = tree_.walk.draft().rows;
  begin_replayed();
  const std::lock_guard lock(timeline_.turn());
  const Clock::time_point start = Clock::now();
  run_tree([&](int shard, const Timeline::RowInputs& to) { fill(shard, to); }, interrupted);
  if (tree_.is_planned && loop_ == nullptr) {
    timeline_.stream().wait();
    planner_->add_step_time(rows, ms_since(start));
  }
  parts_.end(StepPart::kVerify);
  counts_.verified += 1;
  counts_.drafted += rows - 1;
}

void Speculator::run_tree(const Timeline::Fill& fill, const Interrupted& interrupted) {
  const int rows = tree_.walk.draft().rows;
  timeline_.run({.n = rows, .is_tree = true, .inputs = inputs_}, fill, interrupted);
  timeline_.head(timeline_.engine().buffers(), 0, rows, logits_);
}

void Speculator::fill(int shard, const Timeline::RowInputs& to) {
  Stream& stream = timeline_.state().stream_of(shard);
  const Draft& draft = tree_.walk.draft();
  if (!tree_.is_known) {
    drafters_.model->grow(shard, tree_.max_rows, draft.rows);
    if (shard + 1 < timeline_.engine().n_shards()) return;
    loop_->fetch(memory_.back().tree);
    return parts_.end(StepPart::kTree);
  }
  std::array<int32_t, 3 * kMaxTree> positions;
  const int start = timeline_.text_position(timeline_.state().n_tokens());
  for (int axis = 0; axis < 3; ++axis)
    for (int r = 0; r < draft.rows; ++r) positions[axis * draft.rows + r] = start + draft.depths[r];
  if (Draft* tree = memory_[shard].tree; tree != nullptr) {
    stream.upload(tree, &draft, sizeof draft);
  } else {
    stream.upload(to.tokens, draft.tokens, draft.rows * sizeof *draft.tokens);
    stream.upload(to.parents, draft.parents, draft.rows * sizeof *draft.parents);
    stream.upload(to.ancestors, draft.ancestors, draft.rows * sizeof *draft.ancestors);
  }
  stream.upload(to.positions, positions.data(), 3 * draft.rows * sizeof(int32_t));
}

void Speculator::upload() const {
  for (int i = timeline_.engine().first_head_shard(); i < std::ssize(memory_); ++i)
    if (memory_[i].tree != nullptr)
      timeline_.state().stream_of(i).upload(memory_[i].tree, &walk().draft(), sizeof(Draft));
}

void Speculator::begin_replayed() { tree_.walk.set_replay_depth(next_length_ ? next_length_() : -1); }

void Speculator::begin_verified() {
  begin_replayed();
  counts_.verified += 1;
  counts_.drafted += walk().draft().rows - 1;
  begin_walk();
}

void Speculator::descend(int child) {
  tree_.walk.descend(child);
  counts_.accepted += 1;
}

void Speculator::wait_for_tree() {
  if (tree_.is_known) return;
  timeline_.wait();
  fetch_tree();
}

void Speculator::fetch_tree() {
  if (tree_.is_known) return;
  Draft& draft = tree_.walk.draft();
  const int rows = draft.rows;
  draft = loop_->fetched();
  planner_->set_model_tree(draft, rows);
  draft.rows = rows;
  tree_.is_known = true;
}

bool Speculator::can_draft_ahead(int row) {
  return row == 0 && !tree_.is_known && planner_->draft_may_run_ahead() && drafters_.model->fits_ahead();
}

std::span<const VerifiedTree> Speculator::verified_trees(int row, bool accepts_path) {
  verified_.resize(memory_.size());
  for (size_t i = 0; i < memory_.size(); ++i)
    verified_[i] = {.draft = memory_[i].tree,
                    .logits = memory_[i].logits,
                    .rows = walk().draft().rows,
                    .first = row,
                    .replay_length = walk().replay_length(row),
                    .accept = accepts_path ? drafters_.model->accept_path(int(i)) : AcceptPath{}};
  return verified_;
}

void Speculator::draft_ahead() {
  drafters_.model->send_moves();
  parts_.end(StepPart::kWalk);
  drafters_.model->send(drafters_.model->depth(max_tree_rows(), planner_->draft_depth()));
  parts_.end(StepPart::kDraft);
}

// --- commit

void Speculator::commit(const Verdict& verdict) {
  TreeWalk& walk = tree_.walk;
  const bool is_planned = verdict.is_whole && tree_.is_planned;
  if (is_planned) wait_for_tree();
  const std::lock_guard lock(timeline_.turn());
  const int n_layers = static_cast<int>(timeline_.state().layers().size());
  parts_.start();
  timeline_.commit_path(walk.path(), verdict.draft_is_ahead ? drafters_.model->first_moved_layer() : n_layers);
  parts_.end(StepPart::kWalk);
  if (walk.is_active()) counts_.by_length[walk.path().size() - 1] += 1;
  if (is_planned) {
    planner_->add_accepted(walk.path());
    timeline_.engine().experiences().keep(sampling_, planner_->experience());
  }
  walk.end();
}

void Speculator::start_sequence() {
  if (planner_) planner_->start_sequence(loop_ == nullptr);
}

// --- times

void Speculator::add_prefill_time(int rows, double ms) {
  if (!planner_) return;
  if (rows > 1) {
    start_sequence();
  } else if (loop_ == nullptr) {
    planner_->add_step_time(1, ms);
  }
}

void Speculator::add_pass_time(int rows, double ms) {
  if (planner_ && loop_ == nullptr) planner_->add_pass_time(rows, ms);
}

void Speculator::replay(NextLength next_length) {
  next_length_ = std::move(next_length);
  if (!drafters_.model) return;
  drafters_.model->set_replayed(bool(next_length_));
}

}  // namespace lb
