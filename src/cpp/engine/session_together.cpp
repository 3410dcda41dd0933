// One pass over the weights for several sessions: a row of each, or the tree below it.
#include <algorithm>
#include <array>
#include <chrono>
#include <vector>

#include "base/error.h"
#include "engine/session.h"
#include "ops/copy_rows.h"
#include "ops/draft_rules.h"

namespace lb {
namespace {

constexpr int kPassRows = PassInputs::kRows;

int max_pass_rows(const Executor& executor) { return std::min(executor.max_rows, kPassRows); }

}  // namespace

int Session::sync_together(std::span<const Turn> turns, const Interrupted& interrupted) {
  std::vector<Turn> lacking;
  for (const Turn& turn : turns) {
    LB_CHECK(turn.session->engine_ == turns[0].session->engine_, kInvalid, "these sessions are of different engines");
    LB_CHECK(std::ranges::count(turns, turn.session, &Turn::session) == 1, kInvalid,
             "a session can take one turn in a pass");
    turn.session->engine_->check_ids(turn.ids);
    turn.session->check_idle();
  }
  for (const Turn& turn : turns)
    if (turn.session->lacks_row(turn.ids, interrupted)) lacking.push_back(turn);
  int rows = 0;
  for (std::span<const Turn> rest = lacking; !rest.empty();) {
    const size_t n = std::min<size_t>(rest.size(), max_pass_rows(rest[0].session->engine_->executor()));
    rows += run_together(rest.first(n), interrupted);
    rest = rest.subspan(n);
  }
  return rows;
}

void Session::start_samples(std::span<const Choice> choices) {
  std::array<TokenLoop::RowChoice, kPassRows> rows;
  for (size_t first = 0; first < choices.size(); first += rows.size()) {
    size_t n = 0;
    for (const Choice& choice : choices.subspan(first, std::min(rows.size(), choices.size() - first)))
      if (auto row = choice.session->choice_of_row(*choice.sampler)) rows[n++] = *row;
    if (n == 0) continue;
    const std::lock_guard lock(choices[first].session->engine_->executor().mutex);
    rows[0].loop->sample_rows(std::span(rows).first(n));
  }
}

// The choice from a row that no step follows; in a tree, starts it. Nothing where it has started.
std::optional<TokenLoop::RowChoice> Session::choice_of_row(const Sampler& sampler) {
  if (loop_ == nullptr || !has_logits_ || logits_in_ != LogitsIn::kRow || runs_ahead_) return std::nullopt;
  if (walk_.is_active()) return start_choice_in_tree(sampler), std::nullopt;
  if (choice_started_ && loop_sampler_ == sampler.version()) return std::nullopt;
  if (loop_sampler_ != sampler.version()) {
    const std::lock_guard lock(engine_->executor().mutex);
    forget_sampler();
  }
  const bool is_bound = loop_sampler_ != 0;
  loop_sampler_ = sampler.version();
  choice_started_ = true;
  return TokenLoop::RowChoice{loop_.get(), &sampler, row_logits_, is_bound};
}

// Brings the timeline to all of ids but the last; false: to all of ids, as a session alone does.
bool Session::lacks_row(std::span<const int32_t> ids, const Interrupted& interrupted) {
  if (!extends_by_one(ids)) return sync(ids, interrupted), runs_ahead_ = false;
  const bool is_sampled = ids.back() == sampled_;
  runs_ahead_ = false;
  if (adopt_step(ids) || adopt_tree(ids) || follow_tree(ids)) return false;
  if (device_walks_ || !is_sampled) drop_choices();  // the device's sampler has gone another way
  end_walk(true);
  if (step_pending_) drop_step();
  sampled_ = -1;
  has_logits_ = false;
  return true;
}

// Leaves the rows that a pass computes in walk_: the root, and a tree below it where that pays.
void Session::choose_rows(int32_t root, int max_rows, const Company& beside) {
  const int room = std::min(max_rows, draft_room());
  if (!drafts() || room < 2 || !propose(root, room, false, beside)) {
    drafting::start(walk_.draft(), root);
    width_chose_ = false;
  }
  state_.take_rows(walk_.draft().rows);  // before any session has begun its append
}

int Session::run_together(std::span<const Turn> turns, const Interrupted& interrupted) {
  const Engine& engine = *turns[0].session->engine_;
  Executor& executor = engine.executor();
  const std::lock_guard lock(executor.mutex);
  std::vector<Segment> segments = choose_segments(turns);
  // A row alone would take the kernels of one row, whose sums have another order: a second one is computed for nothing.
  const int least = turns[0].session->loop_ != nullptr ? std::min(2, executor.max_rows) : 1;
  const int rows = std::max(segments.back().first_row + segments.back().rows, least);
  std::chrono::steady_clock::time_point start;
  const auto send = [&] {
    engine.forward(executor, {.tokens = {executor.pass->tokens, static_cast<size_t>(rows)},
                              .positions = {executor.pass->positions, 3 * static_cast<size_t>(rows)},
                              .segments = segments,
                              .interrupted = interrupted ? &interrupted : nullptr});
    send_heads(turns, segments, rows);
  };
  try {
    begin_segments(turns, segments, rows);
    start = std::chrono::steady_clock::now();
    executor.recorded_passes.send(shape_of(turns, segments, rows), *executor.stream, send);
  } catch (...) {
    for (const Turn& turn : turns) {
      turn.session->state_.abort_append();
      turn.session->truncate_tokens(turn.session->state_.n_tokens());
    }
    throw;
  }
  const std::chrono::duration<double, std::milli> time = std::chrono::steady_clock::now() - start;
  for (const Turn& turn : turns) {
    Session& session = *turn.session;
    session.end_turn();
    if (session.width_ && session.loop_ == nullptr) session.width_->took_beside(rows, time.count());  // it has finished
  }
  return segments.back().first_row + segments.back().rows;
}

std::vector<gpu::KernelTime> Session::profile_together(std::span<const Turn> turns, const Interrupted& interrupted) {
  LB_CHECK(!turns.empty(), kInvalid, "there is no session to profile");
  const Engine& engine = *turns[0].session->engine_;
  const std::lock_guard lock(engine.executor().mutex);
  return engine.backend().time_kernels(*engine.executor().stream, [&] { sync_together(turns, interrupted); });
}

// Leaves each session's rows in its walk_. Trees share what the accounts of all sessions may lose.
std::vector<Segment> Session::choose_segments(std::span<const Turn> turns) {
  const int n = static_cast<int>(turns.size());
  const int max_rows = max_pass_rows(turns[0].session->engine_->executor());
  const auto credit_of = [](const Turn& turn) { return turn.session->width_ ? turn.session->width_->credit() : 0; };
  double credit = 0;
  for (const Turn& turn : turns) credit += credit_of(turn);
  std::vector<Segment> segments;
  int rows = 0;
  for (int i = 0; i < n; ++i) {
    Session& session = *turns[i].session;
    session.choose_rows(turns[i].ids.back(), max_rows - rows - (n - 1 - i), {n - 1, credit - credit_of(turns[i])});
    const int own = session.walk_.draft().rows;
    if (own > 1 && session.width_chose_) credit -= session.width_->loss();
    segments.push_back({rows, own, {}, nullptr, &session.state_});
    rows += own;
  }
  return segments;
}

// Everything that the launches of a pass depend on.
std::vector<uint64_t> Session::shape_of(std::span<const Turn> turns, std::span<const Segment> segments, int rows) {
  std::vector<uint64_t> shape{static_cast<uint64_t>(rows)};
  for (size_t i = 0; i < turns.size(); ++i) {
    shape.push_back(turns[i].session->number_);
    shape.push_back(segments[i].rows);
  }
  return shape;
}

// Begins the append of each session, and sends the inputs of all rows; those behind the segments are any.
void Session::begin_segments(std::span<const Turn> turns, std::span<Segment> segments, int rows) {
  const Executor& executor = turns[0].session->engine_->executor();
  Stream& stream = *executor.stream;
  PassInputs inputs{};
  for (size_t i = 0; i < turns.size(); ++i) {
    Session& session = *turns[i].session;
    const Draft& draft = session.walk_.draft();
    const int first = segments[i].first_row, n_past = session.state_.n_tokens();
    std::copy_n(draft.tokens, draft.rows, inputs.tokens + first);
    std::copy_n(draft.parents, draft.rows, inputs.parents + first);
    std::copy_n(draft.ancestors, draft.rows, inputs.ancestors + first);
    for (int axis = 0; axis < 3; ++axis)
      for (int r = 0; r < draft.rows; ++r) inputs.positions[axis * rows + first + r] = n_past + draft.depths[r];
    session.settle_step_rows();
    session.appended_.clear();
    if (draft.rows > 1) {
      segments[i].tree = {executor.pass->parents + first, executor.pass->ancestors + first};
      if (session.loop_ != nullptr) stream.upload(session.tree_.tree, &draft, sizeof draft);  // for the device's walk
      session.state_.begin_append(draft.rows, segments[i].tree);
    } else {
      inputs.numbers[i] = session.state_.begin_append_at(executor.pass->numbers + i, 1);
    }
    segments[i].n_past = session.state_.n_past();
  }
  stream.upload(executor.pass, &inputs, sizeof inputs);
}

// The logits of all rows, each in the memory of its session. A pass over the head serves several sessions.
void Session::send_heads(std::span<const Turn> turns, std::span<const Segment> segments, int rows) {
  static_assert(kPassRows <= Executor::kLogitRows);
  const Session& any = *turns[0].session;
  const Executor& executor = any.engine_->executor();
  const int vocab = any.engine_->model().info().vocab;
  any.head(executor, 0, rows, executor.logits);
  std::array<CopyRows, kPassRows> rows_alone;  // of one shape, which one launch copies
  size_t n_alone = 0;
  for (size_t i = 0; i < turns.size(); ++i) {
    const CopyRows copy{.x = executor.logits + static_cast<size_t>(segments[i].first_row) * vocab,
                        .y = turns[i].session->own_logits(),
                        .rows = segments[i].rows,
                        .dim = vocab,
                        .y_rows = segments[i].rows,
                        .y_stride = vocab};
    if (copy.rows == 1) {
      rows_alone[n_alone++] = copy;
    } else {
      run(copy, *executor.stream);
    }
  }
  executor.stream->run(std::span<const CopyRows>(rows_alone).first(n_alone));
}

// Room for the logits of the rows of a turn, in the stream's memory.
float* Session::own_logits() {
  if (tree_.logits != nullptr) return tree_.logits;
  return loop_ != nullptr ? loop_->logits() : logits_.data();
}

void Session::end_turn() {
  state_.end_append();
  const Draft& draft = walk_.draft();
  if (draft.rows > 1) {
    walk_.set_replay_depth(replay_ ? replay_->next() : -1);
    draft_counts_.verified += 1;
    draft_counts_.drafted += draft.rows - 1;
    walk_.begin();
    return enter_row(0);
  }
  state_.commit_chain(1);
  add_tokens({draft.tokens, 1});
  has_logits_ = true;
  row_logits_ = own_logits();
  logits_in_ = row_logits_ == logits_.data() ? LogitsIn::kHost : LogitsIn::kRow;
}

}  // namespace lb
