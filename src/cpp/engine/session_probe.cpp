#include "engine/session_probe.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <utility>

#include "base/error.h"
#include "speculation/replay.h"

namespace lb {
namespace {

void check_one_device(const Engine& engine) {
  LB_CHECK(engine.n_shards() == 1, kUnsupported,
           "kernels are timed on one device, and this model is divided among several. Load it on one device");
}

}  // namespace

void SessionProbe::replay(std::span<const int64_t> by_length, uint64_t seed) {
  Speculator& speculator = session_.speculator_;
  speculator.replay({});
  if (by_length.empty()) return;
  const auto replay = std::make_shared<Replay>(by_length, seed);
  speculator.replay([replay] { return replay->next(); });
  if (speculator.drafters_.model == nullptr) return;
  // Synthetic weights hardly prefer any token, so their trees would be only one or two levels deep. A replay needs long
  // paths, so the likeliest token of each depth gets probability 1.
  const DraftModel& model = *session_.engine().draft_model();
  const int k = model.n_candidates(), n = model.max_depth() * k;
  std::array<float, kMaxTree * kMaxTopTokens> logprobs;
  for (int i = 0; i < n; ++i) logprobs[i] = -float(i % k);
  const std::lock_guard lock(session_.timeline_.turn());
  SequenceState& state = session_.timeline_.state();
  for (const int i : session_.engine().drafting_shards())
    state.stream_of(i).upload(speculator.memory_[i].replay_logprobs, logprobs.data(), n * sizeof(float));
}

void SessionProbe::measure_append(std::span<const int32_t> ids, int n_logits,
                                  const std::function<void(const Work&)>& measure, const Interrupted& interrupted) {
  Timeline& timeline = session_.timeline_;
  const int rows = static_cast<int>(ids.size());
  timeline.check_append(ids, {});
  LB_CHECK(n_logits >= 0 && n_logits <= rows, kInvalid, "n_logits must be between 0 and ", rows,
           ", the rows of the append, got ", n_logits);
  session_.at_rest();
  const Engine& engine = session_.engine();
  const std::lock_guard lock(timeline.turn());
  engine.buffers().stream->wait();
  measure([&] {
    timeline.compute(ids, {}, interrupted);
    for (int r = rows - n_logits; r < rows; r += PassBuffers::kLogitRows)
      timeline.head(engine.buffers_for(rows), r, std::min(PassBuffers::kLogitRows, rows - r));
  });
}

std::vector<std::vector<float>> SessionProbe::rank_logits() {
  const Engine& engine = session_.engine();
  const std::optional<LogitsRow> row = session_.decode_.device_row();
  LB_CHECK(engine.is_split_by_tensors() && row, kInvalid,
           "ranks have a token's logits after sync() has decoded it, where the model is split by tensors");
  const size_t vocab = engine.model().info().vocab;
  std::vector<std::vector<float>> logits(engine.n_shards(), std::vector<float>(vocab));
  const std::lock_guard lock(session_.timeline_.turn());
  for (int i = 0; i < engine.n_shards(); ++i)
    session_.timeline_.state().stream_of(i).download(logits[i].data(), row->on(i), vocab * sizeof(float));
  return logits;
}

double SessionProbe::time_append(std::span<const int32_t> ids, int n_logits, const Interrupted& interrupted) {
  using Clock = std::chrono::steady_clock;
  Clock::duration time{};
  const auto measure = [&](const Work& work) {
    const Clock::time_point start = Clock::now();
    work();
    session_.wait();
    time = Clock::now() - start;
  };
  measure_append(ids, n_logits, measure, interrupted);
  return std::chrono::duration<double>(time).count();
}

std::vector<gpu::KernelTime> SessionProbe::profile_append(std::span<const int32_t> ids, int n_logits,
                                                          const Interrupted& interrupted) {
  std::vector<gpu::KernelTime> times;
  check_one_device(session_.engine());
  const auto measure = [&](const Work& work) {
    times = session_.engine().backend().time_kernels(session_.timeline_.stream(), work);
  };
  measure_append(ids, n_logits, measure, interrupted);
  return times;
}

std::vector<gpu::KernelTime> SessionProbe::profile_together(std::span<const SegmentRequest> requests,
                                                            const Interrupted& interrupted) {
  LB_CHECK(!requests.empty(), kInvalid, "there is no session to profile");
  const Engine& engine = requests[0].session->engine();
  const std::lock_guard lock(engine.buffers().turn);
  check_one_device(engine);
  return engine.backend().time_kernels(*engine.buffers().stream, [&] { Pass::sync(requests, interrupted); });
}

StepTimeline SessionProbe::step_timeline() {
  if (session_.loop_ == nullptr) return {};
  const std::lock_guard lock(session_.timeline_.turn());
  return session_.loop_->timeline();
}

DraftStepTimes SessionProbe::time_draft_step(std::span<const int32_t> ids, int rows, int n) {
  using Clock = std::chrono::steady_clock;
  Timeline& timeline = session_.timeline_;
  Speculator& speculator = session_.speculator_;
  TokenLoop* loop = session_.loop_.get();
  ModelDrafter* model = speculator.drafters_.model.get();
  const Engine& engine = session_.engine();
  check_one_device(engine);
  LB_CHECK(loop != nullptr && model != nullptr, kUnsupported,
           "draft steps are timed on a GPU with a draft model; this engine runs on ", engine.plan().device, " with ",
           model == nullptr ? "none" : "one");
  session_.sync(ids);
  session_.at_rest();
  const int max_rows = speculator.room(), n_layers = static_cast<int>(timeline.state().layers().size());
  const int depth = max_rows < 2 ? 0 : model->depth(max_rows, speculator.request(0, max_rows).max_depth);
  const int most = max_rows < 2 ? 0 : model->max_tree(max_rows, depth);
  LB_CHECK(n >= 1 && rows >= 2 && rows <= most, kInvalid, "a step verifies 2 to ", most, " rows here, got ", rows);
  Sampler greedy({}, engine.model().info().vocab);
  const std::lock_guard lock(timeline.turn());
  Stream& stream = timeline.stream();
  speculator.tree_.walk.draft().rows = rows;
  const std::array<std::pair<double DraftStepTimes::*, Work>, 5> parts = {{
      {&DraftStepTimes::draft_ms, [&] { model->send(ids.back(), depth); }},
      {&DraftStepTimes::tree_ms, [&] { model->grow(0, max_rows, rows); }},
      {&DraftStepTimes::verify_ms, [&] { speculator.run_tree([](int, const Timeline::RowInputs&) {}, {}); }},
      {&DraftStepTimes::walk_ms, [&] { session_.decode_.start_walk(greedy, 0, true); }},
      {&DraftStepTimes::commit_ms,
       [&] { timeline.state().send_moves(0, 0, n_layers, speculator.memory_[0].n_before); }},
  }};
  const auto step = [&] {
    for (const auto& [part, work] : parts) work();
    timeline.commit_path({}, n_layers);
  };
  DraftStepTimes times{};
  constexpr int kWarmUp = 3;  // the third run replays recordings
  for (int i = 0; i < kWarmUp; ++i) step();
  stream.wait();
  loop->drop();
  const Clock::time_point start = Clock::now();
  for (int i = 0; i < n; ++i) step();
  stream.wait();
  times.step_ms = std::chrono::duration<double, std::milli>(Clock::now() - start).count() / n;
  for (const auto& [part, work] : parts)
    for (const gpu::KernelTime& time : engine.backend().time_kernels(stream, work)) times.*part += time.seconds * 1e3;
  timeline.commit_path({}, n_layers);
  session_.decode_.drop_choices();
  return times;
}

}  // namespace lb
