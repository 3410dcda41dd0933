// One arena per session: the loop's own logits, token and positions, since the executor's belong to whoever appends,
// and what the sampler keeps. Results come through a ring in pinned memory.
#include "engine/gpu_token_loop.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "device/graph.h"
#include "engine/engine.h"
#include "launch/gpu_stream.h"
#include "launch/schedule.h"

namespace lb {
namespace {

constexpr int kRing = 4;  // more than are ever on their way

// Of a launch of several steps, which others wait for: weights that it reads, and tokens, of which each launch costs a
// few microseconds more.
constexpr size_t kLaunchBytes = size_t{64} << 30, kLaunchTokens = 64;

struct Buffers {
  float* logits;
  int32_t* token;
  int32_t* positions;  // [3]
  SampleOptions* options;
  float* bias;
  uint32_t* mask;
  TokenCounts* counts;
  int32_t* history;
  SampleState* state;
  Sampled* result;
  uint32_t* n_written;
  uint32_t* goes_on;
  std::byte* scratch;
  float* partials;  // of the megakernel's attention

  Buffers(Carver& carver, const Model& model, int context)
      : Buffers(carver, model.info(), model.info().vocab, context) {}

  // The context, the token just outside of it, and the one chosen ahead.
  static int history_capacity(int context) { return context + 2; }

 private:
  Buffers(Carver& carver, const ModelInfo& info, int vocab, int context)
      : logits(carver.take<float>(vocab)),
        token(carver.take<int32_t>(1)),
        positions(carver.take<int32_t>(3)),
        options(carver.take<SampleOptions>(1)),
        bias(carver.take<float>(vocab)),
        mask(carver.take<uint32_t>(mask_words(vocab))),
        counts(carver.take<TokenCounts>(vocab)),
        history(carver.take<int32_t>(history_capacity(context))),
        state(carver.take<SampleState>(1)),
        result(carver.take<Sampled>(1)),
        n_written(carver.take<uint32_t>(1)),
        goes_on(carver.take<uint32_t>(1)),
        scratch(carver.take<std::byte>(gpu::sample_scratch_bytes(vocab))),
        partials(carver.take<float>(gpu::Schedule::runs_scratch_bytes(info.n_heads, info.head_dim, context) / 4)) {}
};

struct Ring {
  std::array<Sampled, kRing> slots;
  uint32_t written;
  uint32_t allowed, ended;  // gpu::Leave
  gpu::MegaReport report;
};

// Steps as launches of several: the schedule's tables on the device, and where the launches stand. Tokens are counted
// as the ring counts them.
class MegaSteps {
 public:
  // goes_on: of the plan's Leave.
  MegaSteps(const gpu::MegaPlan& plan, uint32_t* goes_on, int most_tokens, Ring* ring, GpuStream& stream)
      : stream_(stream), ring_(ring), launch_(plan.launch), text_(gpu::to_string(plan)) {
    for (const gpu::Task& task : plan.tasks) names_.push_back(gpu::describe(task));
    Carver counter;
    carve(counter, plan);
    memory_ = stream.reserve(counter.used());
    Carver carver(*memory_);
    carve(carver, plan);
    params_.n_steps = plan.n_steps;
    params_.n_phases = plan.n_phases;
    params_.n_tokens = most_tokens;
    params_.goes_on = goes_on;
    params_.n_streams = plan.n_streams;
    n_words_ = size_t(plan.n_words);
    stream.zero(params_.words, n_words_ * sizeof(gpu::Word));
    params_.memory = plan.memory;
    params_.patience_ns = kPatienceNs;
    params_.report = &ring->report;
    stream.upload(tasks_, plan.tasks.data(), plan.tasks.size() * sizeof(gpu::Task));
    stream.upload(steps_, plan.steps.data(), plan.steps.size() * sizeof(gpu::TaskStep));
    stream.upload(streams_, plan.streams.data(), plan.streams.size() * sizeof(gpu::StreamStep));
    stream.upload(stream_counts_, plan.stream_counts.data(), plan.stream_counts.size() * sizeof(int32_t));
  }

  // One more token after n that were asked for: by the launch that is running, if that sees it in time.
  void step(uint32_t n) {
    wanted_ = n + 1;
    is_running_ ? allow() : launch(n);
  }
  // Token n has been written; the launch may have ended with it.
  void has_written(uint32_t n) {
    if (!is_running_ || ring_->ended != n) return;
    params_.first += (n - begin_) * uint32_t(params_.n_phases) * launch_.grid[0];
    is_running_ = false;
    if (wanted_ != n) launch(n);
  }
  // A launch gave up, with its counter anywhere.
  void restart() {
    stream_.zero(arrived_, sizeof *arrived_);
    stream_.zero(params_.words, n_words_ * sizeof(gpu::Word));
    params_.first = 0;
    is_running_ = false;
  }
  const std::string& text() const { return text_; }

  // Of the last step, [blocks, n_steps]; taken by launches after the first call, which ends the one that is running.
  Timeline timeline() {
    const size_t n = size_t(launch_.grid[0]) * params_.n_steps;
    if (params_.times == nullptr) {
      stream_.wait();
      times_ = stream_.reserve(n * sizeof(gpu::StepTimes));
      params_.times = reinterpret_cast<gpu::StepTimes*>(times_->data());
      return {};
    }
    std::vector<gpu::StepTimes> times(n);
    std::vector<gpu::TaskStep> steps(n);
    stream_.download(times.data(), params_.times, n * sizeof(gpu::StepTimes));
    stream_.download(steps.data(), steps_, n * sizeof(gpu::TaskStep));
    Timeline result{.steps = {}, .tasks = names_};
    for (size_t i = 0; i < n; ++i)
      result.steps.push_back({int(i / params_.n_steps), phase_of(steps[i]), steps[i].task, times[i].began,
                              times[i].waited, times[i].done});
    return result;
  }

  static constexpr long kPatienceNs = 2'000'000'000;

 private:
  void launch(uint32_t n) {
    begin_ = n;
    is_running_ = true;
    allow();
    stream_.pack().run(launch_, params_, stream_.queue());
  }
  void allow() {
    const uint32_t n = begin_ + std::min(wanted_ - begin_, uint32_t(params_.n_tokens));
    std::atomic_ref(ring_->allowed).store(n, std::memory_order_release);
  }
  void carve(Carver& carver, const gpu::MegaPlan& plan) {
    params_.tasks = tasks_ = carver.take<gpu::Task>(plan.tasks.size());
    params_.steps = steps_ = carver.take<gpu::TaskStep>(plan.steps.size());
    params_.streams = streams_ = carver.take<gpu::StreamStep>(plan.streams.size());
    params_.stream_counts = stream_counts_ = carver.take<int32_t>(plan.stream_counts.size());
    params_.arrived = arrived_ = carver.take<uint32_t>(1);
    params_.words = carver.take<gpu::Word>(size_t(plan.n_words));
  }

  GpuStream& stream_;
  Ring* ring_;
  gpu::Launch launch_;
  std::string text_;
  std::vector<std::string> names_;  // of tasks
  gpu::Mega params_ = {};
  uint32_t wanted_ = 0, begin_ = 0;  // tokens: asked for, and before the last launch
  bool is_running_ = false;          // it has not been seen to end
  gpu::Task* tasks_ = nullptr;
  gpu::TaskStep* steps_ = nullptr;
  gpu::StreamStep* streams_ = nullptr;
  int32_t* stream_counts_ = nullptr;
  uint32_t* arrived_ = nullptr;
  size_t n_words_ = 0;
  std::unique_ptr<Memory> memory_, times_;
};

SampleOptions options_of(const SamplingParams& p) {
  return {.temperature = p.temperature,
          .top_k = p.top_k,
          .top_p = p.top_p,
          .min_p = p.min_p,
          .typical_p = p.typical_p,
          .repetition_penalty = p.repetition_penalty,
          .frequency_penalty = p.frequency_penalty,
          .presence_penalty = p.presence_penalty,
          .penalty_window = p.penalty_window,
          .has_bias = p.logit_bias.empty() ? 0 : 1,
          .has_mask = 0,
          .n_top = p.n_top,
          .seed = p.seed};
}

class GpuTokenLoop final : public TokenLoop {
 public:
  GpuTokenLoop(const Engine& engine, SequenceState& state)
      : engine_(engine),
        state_(state),
        stream_(static_cast<GpuStream&>(state.stream())),
        memory_(stream_.reserve(gpu_token_loop_bytes(engine.model(), state.capacity()))),
        buffers_(on(*memory_)),
        ring_memory_(stream_.pack().device(), sizeof(Ring), gpu::Buffer::Kind::kPinned),
        ring_(new (ring_memory_.data()) Ring{}) {}

  void sample(const Sampler& sampler, std::span<const float> logits) override {
    bind(sampler);
    stream_.upload(buffers_.logits, logits.data(), logits.size_bytes());
    const std::array<int32_t, 3> positions = next_positions();
    stream_.upload(buffers_.positions, positions.data(), sizeof positions);
    run_choice();
    ++started_;
  }

  void step() override {
    if (!graph_ && !mega_) make_step();
    if (mega_)
      mega_->step(started_);
    else
      graph_->launch(stream_.queue());
    ++started_;
  }

  void step_only() override {
    if (!forward_) forward_ = record([&] { run_forward(stream_); });
    forward_->launch(stream_.queue());
  }

  void choose(std::span<const uint32_t> mask) override {
    send_mask(mask);
    run_choice();
    ++started_;
  }

  int32_t take() override {
    LB_ASSERT(taken_ != started_);
    wait();
    last_ = ring_->slots[taken_++ % kRing];
    if (mega_) mega_->has_written(taken_);
    LB_CHECK(last_.problem != SampleProblem::kNotFinite, kFormat, engine_.file().path,
             ": the logits are not finite; the weights are damaged or overflow");
    LB_CHECK(last_.problem != SampleProblem::kAllForbidden, kInvalid, kAllForbiddenText);
    return last_.token;
  }

  Logprobs logprobs(int n_top) const override {
    LB_CHECK(n_top <= last_.n_top, kInvalid, "the sampler was made for the ", last_.n_top,
             " likeliest tokens, asked for ", n_top);
    Logprobs result{last_.logprob, {}};
    for (int i = 0; i < n_top; ++i) result.top.emplace_back(last_.top_ids[i], last_.top_logprobs[i]);
    return result;
  }

  Timeline timeline() override { return mega_ ? mega_->timeline() : Timeline{}; }
  std::string describe() const override { return mega_ ? mega_->text() : graph_ ? cat("graph", why_) : ""; }

  void download_logits(std::span<float> to) override { stream_.download(to.data(), buffers_.logits, to.size_bytes()); }

  void drop() override {
    stream_.queue().synchronize();
    taken_ = started_ = ring_->written;
    if (mega_) mega_->has_written(taken_);
  }

 private:
  Buffers on(const Memory& memory) const {
    Carver carver(memory);
    return Buffers(carver, engine_.model(), state_.capacity());
  }

  // Positions of a step are those of text: the NextToken of the choice before counts them up.
  std::array<int32_t, 3> next_positions() const {
    const int32_t before = state_.n_tokens() - 1;
    return {before, before, before};
  }

  void bind(const Sampler& sampler) {
    const SamplingParams& params = sampler.params();
    const int vocab = engine_.model().info().vocab;
    options_ = options_of(params);
    const SampleState state{sampler.draws(), static_cast<int32_t>(sampler.history().size())};
    LB_CHECK(state.n_tokens < Buffers::history_capacity(state_.capacity()), kInvalid, "the sampler has seen ",
             state.n_tokens, " tokens; the context holds ", state_.capacity());
    send_mask(sampler.mask());
    stream_.upload(buffers_.state, &state, sizeof state);
    stream_.upload(buffers_.history, sampler.history().data(), sampler.history().size_bytes());
    if (options_.has_bias) {
      std::vector<float> bias(vocab);
      for (const auto& [id, value] : params.logit_bias)
        bias[id] = value <= -100 ? -std::numeric_limits<float>::infinity() : value;
      stream_.upload(buffers_.bias, bias.data(), bias.size() * sizeof(float));
    }
    if (sampler.generated().empty()) {
      stream_.zero(buffers_.counts, vocab * sizeof(TokenCounts));
    } else {
      std::vector<TokenCounts> counts(vocab);
      for (const auto& [id, n] : sampler.generated()) counts[id].generated = n;
      stream_.upload(buffers_.counts, counts.data(), counts.size() * sizeof(TokenCounts));
    }
    stream_.run(CountWindow{.options = buffers_.options,
                            .state = buffers_.state,
                            .history = buffers_.history,
                            .counts = buffers_.counts,
                            .capacity = Buffers::history_capacity(state_.capacity())});
  }

  void send_mask(std::span<const uint32_t> mask) {
    options_.has_mask = mask.empty() ? 0 : 1;
    stream_.upload(buffers_.options, &options_, sizeof options_);
    if (!mask.empty()) stream_.upload(buffers_.mask, mask.data(), mask.size_bytes());
  }

  // The forward pass of one row, up to its logits.
  void run_forward(Stream& stream) {
    const Executor& executor = engine_.executor();
    const Activations activations = engine_.options().activations;
    engine_.model().forward({.tokens = {buffers_.token, 1}, .positions = {buffers_.positions, 3}}, state_,
                            executor.workspace, activations, stream);
    engine_.model().head(executor.workspace.y, 1, buffers_.logits, activations, stream);
  }

  void make_step() {
    const DecodePath path = engine_.options().path;
    const size_t most_bytes = size_t(stream_.pack().target().tune("megakernel_most_mib")) << 20;
    const bool is_wanted = path == DecodePath::kMegakernel ||
                           (path == DecodePath::kAuto && engine_.model().bytes_per_token() <= most_bytes);
    try {
      if (is_wanted) make_mega();
    } catch (const Error& error) {  // asked for by name, it is not replaced
      if (path == DecodePath::kMegakernel || error.code() != ErrorCode::kUnsupported) throw;
      why_ = cat(", as ", error.what());
    }
    if (!mega_)
      graph_ = record([&] {
        run_forward(stream_);
        run_choice();
      });
  }

  void make_mega() {
    const gpu::Target& target = stream_.pack().target();
    gpu::Schedule schedule(target, state_.capacity(), buffers_.partials);
    run_forward(schedule);
    const gpu::SampleLaunches sample = gpu::choose(sample_op(), buffers_.scratch, target);
    const gpu::Leave leave{&ring_->allowed, &ring_->ended, buffers_.goes_on};
    const size_t most = std::clamp(kLaunchBytes / engine_.model().bytes_per_token(), size_t(1), kLaunchTokens);
    mega_.emplace(schedule.compile(sample.params, next_token_op(), leave), buffers_.goes_on, int(most), ring_, stream_);
  }

  void run_choice() {
    stream_.run(sample_op(), buffers_.scratch);
    stream_.run(next_token_op());
  }

  Sample sample_op() const {
    const int vocab = engine_.model().info().vocab;
    return Sample{.logits = buffers_.logits,
                  .options = buffers_.options,
                  .bias = buffers_.bias,
                  .mask = buffers_.mask,
                  .counts = buffers_.counts,
                  .history = buffers_.history,
                  .state = buffers_.state,
                  .result = buffers_.result,
                  .vocab = vocab,
                  .capacity = Buffers::history_capacity(state_.capacity())};
  }

  NextToken next_token_op() const {
    return NextToken{.sampled = buffers_.result,
                     .ring = {ring_->slots.data(), &ring_->written, kRing},
                     .n_written = buffers_.n_written,
                     .token = buffers_.token,
                     .n_past = &state_.numbers()->n_past,
                     .key_buffer = &state_.numbers()->key_buffer,
                     .n_accepted = &state_.numbers()->n_accepted,
                     .accepted = state_.numbers()->accepted,
                     .positions = buffers_.positions,
                     .n_positions = 3};
  }

  template <class Work>
  std::optional<gpu::Graph> record(Work&& work) {
    gpu::Capture capture(stream_.queue());
    work();
    return gpu::Graph(capture);
  }

  // The device writes `written` last. An error of the device would never write it, so now and then the stream is asked.
  void wait() {
    const std::atomic_ref<uint32_t> written(ring_->written);
    for (int spin = 0; written.load(std::memory_order_acquire) == taken_; ++spin)
      if (spin == kSpins) {
        stream_.queue().synchronize();  // throws what went wrong
        if (const uint32_t stuck = std::exchange(ring_->report.stuck, 0); stuck != 0) {
          mega_->restart();
          fail(ErrorCode::kInternal, "[megakernel] a block waited ", MegaSteps::kPatienceNs / 1000000000,
               " s for the others to end the phase before ", stuck - 1,
               " and gave up; the schedule or the kernel is wrong");
        }
        LB_ASSERT(written.load(std::memory_order_acquire) != taken_);
      }
  }
  static constexpr int kSpins = 1 << 22;

  const Engine& engine_;
  SequenceState& state_;
  GpuStream& stream_;
  std::unique_ptr<Memory> memory_;
  Buffers buffers_;
  gpu::Buffer ring_memory_;
  Ring* ring_;
  std::optional<gpu::Graph> graph_, forward_;
  SampleOptions options_{};  // what the device has
  std::optional<MegaSteps> mega_;
  std::string why_;  // no megakernel
  uint32_t started_ = 0, taken_ = 0;
  Sampled last_{};
};

}  // namespace

size_t gpu_token_loop_bytes(const Model& model, int context) {
  Carver counter;
  Buffers(counter, model, context);
  return counter.used();
}

std::unique_ptr<TokenLoop> gpu_token_loop(const Engine& engine, SequenceState& state) {
  return std::make_unique<GpuTokenLoop>(engine, state);
}

}  // namespace lb
