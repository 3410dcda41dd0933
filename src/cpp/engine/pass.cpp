#include "engine/pass.h"

#include <algorithm>
#include <array>
#include <chrono>

#include "base/error.h"
#include "ops/copy_rows.h"

namespace lb {
namespace {

constexpr int kPassRows = PassInputs::kRows;

}  // namespace

int Pass::sync(std::span<const SegmentRequest> requests, const Interrupted& interrupted) {
  std::vector<SegmentRequest> lacking;
  for (const SegmentRequest& request : requests) {
    const Session& session = *request.session;
    LB_CHECK(&session.engine() == &requests[0].session->engine(), kInvalid, "the sessions belong to different engines");
    LB_CHECK(std::ranges::count(requests, request.session, &SegmentRequest::session) == 1, kInvalid,
             "a pass takes each session once, got one twice");
    session.engine().check_ids(request.ids);
    session.timeline_.check_idle();
    request.session->drop_lost();
  }
  for (const SegmentRequest& request : requests)
    if (request.session->advance_to_last_row(request.ids, interrupted)) lacking.push_back(request);
  int rows = 0;
  for (std::span<const SegmentRequest> rest = lacking; !rest.empty();) {
    PassBuffers& buffers = rest[0].session->engine().buffers();
    const size_t n = std::min<size_t>(rest.size(), rest[0].session->engine().max_pass_rows());
    const std::lock_guard lock(buffers.turn);
    rows += Pass(rest.first(n)).run(interrupted);
    rest = rest.subspan(n);
  }
  return rows;
}

void Pass::start_samples(std::span<const Choice> choices) {
  std::array<TokenLoop::RowChoice, kPassRows> rows;
  for (size_t first = 0; first < choices.size(); first += rows.size()) {
    size_t n = 0;
    for (const Choice& choice : choices.subspan(first, std::min(rows.size(), choices.size() - first)))
      if (auto row = choice.session->decode_.choice_of_row(*choice.sampler)) rows[n++] = *row;
    if (n == 0) continue;
    const std::lock_guard lock(choices[first].session->timeline_.turn());
    rows[0].loop->sample_rows(std::span(rows).first(n));
  }
}

Pass::Pass(std::span<const SegmentRequest> requests)
    : requests_(requests), engine_(requests[0].session->engine()), buffers_(engine_.buffers()) {}

int Pass::run(const Interrupted& interrupted) {
  using Clock = std::chrono::steady_clock;
  choose_segments();
  n_used_ = segments_.back().first_row + segments_.back().rows;
  // A single row would run on the GEMVs, whose summation order differs, so a dummy second row is added.
  const int least = engine_.backend().sizes().rows_are_invariant() ? 1 : std::min(2, buffers_.max_rows);
  rows_ = std::max(n_used_, least);
  Clock::time_point start;
  try {
    begin_segments();
    start = Clock::now();
    const auto send_all = [&] { send(interrupted); };
    if (engine_.is_split_by_tensors()) {
      const auto send_rank = [&](int rank) {
        engine_.forward_rank(rank, buffers_, appends(interrupted)[rank]);
        send_heads(rank);
      };
      buffers_.recorded_passes.send(shape(), engine_.rank_streams(), send_all, send_rank);
    } else if (engine_.is_split_by_layers()) {
      buffers_.recorded_passes.send(shape(), engine_.linked_streams(), send_all);
    } else {
      buffers_.recorded_passes.send(shape(), *buffers_.stream, send_all);
    }
    if (engine_.has_draft_shard()) engine_.forward_drafts(buffers_, appends(interrupted)[0]);
  } catch (...) {
    for (const SegmentRequest& request : requests_) request.session->timeline_.abort();
    throw;
  }
  const double ms = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
  for (size_t i = 0; i < requests_.size(); ++i) {
    end_segment(i);
    requests_[i].session->speculator_.add_pass_time(rows_, ms);
  }
  return n_used_;
}

// Chooses each session's rows and leaves them in its walk. The trees share the credit of all sessions.
void Pass::choose_segments() {
  const int n = static_cast<int>(requests_.size()), max_rows = engine_.max_pass_rows();
  const auto credit_of = [](const SegmentRequest& request) { return request.session->speculator_.credit(); };
  double credit = 0;
  for (const SegmentRequest& request : requests_) credit += credit_of(request);
  int rows = 0;
  for (int i = 0; i < n; ++i) {
    Session& session = *requests_[i].session;
    Speculator& speculator = session.speculator_;
    const int32_t root = requests_[i].ids.back();
    const OtherRows others{n - 1, credit - credit_of(requests_[i])};
    if (!speculator.propose(root, {.max_rows = max_rows - rows - (n - 1 - i), .others = others}))
      speculator.propose_root(root);
    const int own = speculator.walk().draft().rows;
    session.timeline_.state().take_rows(own);  // before any session has begun its append
    credit -= speculator.loss();
    segments_.push_back({rows, own, {}, nullptr, &session.timeline_.state()});
    rows += own;
  }
}

// Everything that the launches of a pass depend on: the key of its recording.
std::vector<uint64_t> Pass::shape() const {
  std::vector<uint64_t> shape{static_cast<uint64_t>(rows_)};
  for (size_t i = 0; i < requests_.size(); ++i) {
    shape.push_back(requests_[i].session->timeline_.number());
    shape.push_back(segments_[i].rows);
  }
  return shape;
}

// Begins the append of each session and sends the inputs of all rows. The inputs of padding rows after the segments are
// arbitrary.
void Pass::begin_segments() {
  const int n_shards = engine_.n_shards();
  on_shard_.assign(n_shards, segments_);
  std::vector<PassInputs*> to;  // [shards]
  for (int i = 0; i < n_shards; ++i) to.push_back(engine_.buffers_of(i, buffers_).pass);
  std::vector<AppendNumbers*> numbers(n_shards);
  PassInputs inputs{};
  for (size_t i = 0; i < requests_.size(); ++i) {
    Session& session = *requests_[i].session;
    SequenceState& state = session.timeline_.state();
    const Draft& draft = session.speculator_.walk().draft();
    const int first = segments_[i].first_row, start = session.timeline_.text_position(state.n_tokens());
    std::copy_n(draft.tokens, draft.rows, inputs.tokens + first);
    std::copy_n(draft.parents, draft.rows, inputs.parents + first);
    std::copy_n(draft.ancestors, draft.rows, inputs.ancestors + first);
    for (int axis = 0; axis < 3; ++axis)
      for (int r = 0; r < draft.rows; ++r) inputs.positions[axis * rows_ + first + r] = start + draft.depths[r];
    session.timeline_.settle_steps();
    session.timeline_.forget_append();
    if (draft.rows > 1) {
      for (int s = 0; s < n_shards; ++s) on_shard_[s][i].tree = {to[s]->parents + first, to[s]->ancestors + first};
      if (session.loop_ != nullptr) session.speculator_.upload();
      state.begin_append(draft.rows, true);
    } else {
      std::ranges::transform(to, numbers.begin(), [&](PassInputs* pass) { return pass->numbers + i; });
      inputs.numbers[i] = state.begin_append_at(numbers, 1);
    }
    for (int s = 0; s < n_shards; ++s) on_shard_[s][i].n_past = state.n_past(s), on_shard_[s][i].shard = s;
  }
  for (int s = 0; s < n_shards; ++s) engine_.buffers_of(s, buffers_).stream->upload(to[s], &inputs, sizeof inputs);
}

std::vector<Append> Pass::appends(const Interrupted& interrupted) const {
  const size_t n = rows_;
  std::vector<Append> appends;
  for (int s = 0; s < engine_.n_shards(); ++s) {
    const PassInputs& inputs = *engine_.buffers_of(s, buffers_).pass;
    appends.push_back({.tokens = {inputs.tokens, n},
                       .positions = {inputs.positions, 3 * n},
                       .segments = on_shard_[s],
                       .interrupted = interrupted ? &interrupted : nullptr});
  }
  return appends;
}

void Pass::send(const Interrupted& interrupted) {
  engine_.forward(buffers_, appends(interrupted));
  for (int s = engine_.first_head_shard(); s < engine_.n_shards(); ++s) send_heads(s);
}

// Sends the logits of all rows to their sessions' memory on a shard. Each read of the head serves several sessions.
void Pass::send_heads(int shard) {
  static_assert(kPassRows <= PassBuffers::kLogitRows);
  const PassBuffers& buffers = engine_.buffers_of(shard, buffers_);
  const int vocab = engine_.model().info().vocab;
  engine_.head_on(shard, buffers_, 0, rows_, nullptr);
  std::array<CopyRows, kPassRows> rows_alone;  // equal shapes: one launch copies them all
  size_t n_alone = 0;
  for (size_t i = 0; i < requests_.size(); ++i) {
    const auto to = requests_[i].session->decode_.row_logits();
    if (to.empty()) continue;
    const CopyRows copy{.x = buffers.logits + static_cast<size_t>(segments_[i].first_row) * vocab,
                        .y = to[shard],
                        .rows = segments_[i].rows,
                        .dim = vocab,
                        .y_rows = segments_[i].rows,
                        .y_stride = vocab};
    if (copy.rows == 1) {
      rows_alone[n_alone++] = copy;
    } else {
      ::lb::run(copy, *buffers.stream);
    }
  }
  buffers.stream->run(std::span<const CopyRows>(rows_alone).first(n_alone));
}

void Pass::end_segment(size_t i) const {
  Session& session = *requests_[i].session;
  session.timeline_.state().end_append();
  const Draft& draft = session.speculator_.walk().draft();
  if (draft.rows > 1) return session.decode_.set_tree_logits();
  session.timeline_.commit_rows({draft.tokens, 1});
  if (session.decode_.row_logits().empty()) {
    const size_t vocab = engine_.model().info().vocab;
    buffers_.stream->download(session.decode_.on_host(), buffers_.logits + segments_[i].first_row * vocab,
                              vocab * sizeof(float));
  }
  session.decode_.set_row_logits();
}

}  // namespace lb
