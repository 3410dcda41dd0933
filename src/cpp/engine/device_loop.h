// GpuTokenLoop: the token loop of one GPU. One arena per session holds the sampler's state and separate logits, token
// and positions, because any session may overwrite the pass buffers'. Results arrive through a ring in pinned memory. A
// step is a megakernel launch if the options require it, or if the target's megakernel is faster at this model size and
// context length. Otherwise a step is a graph replay.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <limits>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "dispatch/gpu_stream.h"
#include "engine/engine.h"
#include "engine/gpu_token_loop.h"
#include "engine/step_plan.h"

namespace lb {

// Limits of one launch, in bytes of weights read and in tokens: longer launches make other sessions wait; shorter ones
// pay a few microseconds of launch cost more often.
inline constexpr size_t kLaunchBytes = size_t{64} << 30, kLaunchTokens = SequenceState::kLaunchTokens;

// StepRows::compute() is sent at the end of a page and may run after a launch that continues past that page. No step of
// that launch may overwrite the page's rows in the ring, or the row before them.
static_assert(kLaunchTokens + kPageTokens <= StepRing::kRows);

// The error of a token that a failed device did not compute.
inline constexpr char kLostToken[] = "a device failed while it computed the token; call sync() to compute it again";

// Pinned host memory through which the ranks' megakernels exchange words and logits where devices cannot reach each
// other; else null.
struct StagedWords {
  std::array<gpu::Mailbox*, kMaxRanks> words = {};
  float* logits = nullptr;
};

class GpuTokenLoop : public TokenLoop {
 public:
  GpuTokenLoop(const Engine& engine, SequenceState& state, int shard, std::span<const StepRing> rings)
      : engine_(engine),
        model_(engine.model_on(shard)),
        workspace_(engine.buffers_of(shard, engine.buffers()).workspace),
        state_(state),
        shard_(shard),
        taps_(taps_of(engine, shard, rings)),
        stream_(static_cast<GpuStream&>(state.stream_of(shard))),
        memory_(stream_.reserve(gpu_token_loop_bytes(model_, engine.options(), state.capacity()))),
        buffers_(on(*memory_)),
        logits_(engine.n_shards()),
        ring_memory_(stream_.pack().device(), sizeof(Ring), gpu::Buffer::Kind::kPinned),
        ring_(new (ring_memory_.data()) Ring{}),
        fetched_(stream_.pack().device(), sizeof(Draft), gpu::Buffer::Kind::kPinned) {
    logits_[shard] = buffers_.logits;
    try {
      if (wants_mega(model_, engine.options(), target())) make_mega();
    } catch (const Error& error) {
      if (!allows_graph(error, engine.options())) throw;
      why_graph_ = cat(", because ", error.what());
    }
  }

  void sample(const Sampler& sampler, std::span<const float> logits) override {
    bind(sampler);
    stream_.upload(buffers_.logits, logits.data(), logits.size_bytes());
    run_choice();
    ++started_;
  }

  std::span<float* const> logits() const override { return logits_; }

  void sample_row(const Sampler& sampler, const LogitsRow& logits, bool is_bound) override {
    const RowChoice choice{this, &sampler, logits, is_bound};
    sample_rows({&choice, 1});
  }

  void sample_rows(std::span<const RowChoice> choices) override {
    std::array<GpuStream::ScratchedSample, gpu::kMaxBatched> samples;
    std::array<NextToken, gpu::kMaxBatched> ends;
    for (size_t n = 0; !choices.empty(); choices = choices.subspan(n)) {
      n = std::min(choices.size(), samples.size());
      for (size_t i = 0; i < n; ++i) {
        auto& own = static_cast<GpuTokenLoop&>(*choices[i].loop);
        own.bind_to_row(*choices[i].sampler, choices[i].is_bound);
        samples[i] = {own.row_choice(choices[i].logits.on(own.shard_)), own.buffers_.scratch};
        ends[i] = next_token_op(own.buffers_, own.ring_, own.state_.numbers(own.shard_));
        ends[i].n_past = nullptr;  // no step precedes the choice: the path is committed later
        ++own.started_;
      }
      stream_.run(std::span<const GpuStream::ScratchedSample>(samples).first(n));
      stream_.run(std::span<const NextToken>(ends).first(n));
    }
  }

  void start_walk(const Sampler& sampler, std::span<const VerifiedTree> trees, bool is_bound) override {
    const VerifiedTree& tree = trees[shard_];
    bind_to_row(sampler, is_bound);
    stream_.run(WalkTree{.choice = row_choice(tree.logits),
                         .tokens = tree.draft->tokens,
                         .parents = tree.draft->parents,
                         .rows = tree.rows,
                         .first = tree.first,
                         .replay_length = tree.replay_length,
                         .ring = {ring_->slots.data(), &ring_->written, Ring::kSlots},
                         .n_written = buffers_.n_written,
                         .token = buffers_.tokens(),
                         .accept = tree.accept},
                buffers_.scratch);
    is_walking_ = true;
  }

  void fetch(const Draft* tree) override {
    stream_.queue().copy_to_host(fetched_.data(), const_cast<Draft*>(tree), sizeof *tree);
  }
  const Draft& fetched() const override { return *reinterpret_cast<const Draft*>(fetched_.data()); }

  void enter(int32_t token) override { stream_.upload(buffers_.tokens(), &token, sizeof token); }

  // Text positions: all three are equal. NextToken increments them after each choice.
  void place(int position) override {
    std::array<int32_t, 3 * kMaxStepRows> positions;
    positions.fill(position);
    stream_.upload(buffers_.positions, positions.data(), 3 * buffers_.rows * sizeof(int32_t));
  }

  void step() override {
    if (uses_mega()) {
      mega_->step(started_);
    } else {
      finish_launch();
      replay(graph_, [&] {
        run_forward();
        run_choice();
      });
    }
    ++started_;
  }

  void step_only() override {
    replay(forward_, [&] { run_forward(); });
  }

  void choose(std::span<const uint32_t> mask) override {
    send_mask(mask);
    run_choice();
    ++started_;
  }

  // Counts the oldest token as taken, without its value, after another rank's loop has taken the same token.
  void skip(const GpuTokenLoop& other) {
    ++taken_;
    if (is_walking_) started_ = taken_;
    is_walking_ = other.is_walking_;
  }

  void await() override {
    if (taken_ != started_ || is_walking_) wait(taken_);
  }

  int32_t take() override {
    LB_ASSERT(taken_ != started_ || is_walking_);
    wait(taken_);
    if (stream_.has_failed_device()) {
      const std::lock_guard lock(engine_.buffers().turn);  // other sessions may be sending
      stream_.check_devices();
    }
    last_ = ring_->slots[taken_++ % Ring::kSlots];
    if (is_walking_) started_ = taken_;
    if (last_.row < 0) is_walking_ = false;
    if (!engine_.is_split_by_tensors() && follow_launch(taken_, *this)) launch_again();
    LB_CHECK(last_.problem != SampleProblem::kNotFinite, kFormat, engine_.file().path,
             ": the logits are not finite; the weights are damaged or overflow");
    LB_CHECK(last_.problem != SampleProblem::kAllForbidden, kInvalid, kAllForbiddenText);
    return last_.token;
  }

  Logprobs logprobs(int n_top) const override {
    LB_CHECK(n_top <= last_.n_top, kInvalid, "the sampler's logprobs is ", last_.n_top, ", too few for the ", n_top,
             " likeliest tokens");
    Logprobs result{last_.logprob, {}};
    for (int i = 0; i < n_top; ++i) result.top.emplace_back(last_.top_ids[i], last_.top_logprobs[i]);
    return result;
  }

  StepTimeline timeline() override { return uses_mega() ? mega_->timeline() : StepTimeline{}; }
  std::string name() const override {
    if (uses_mega()) return mega_->text();
    if (has_mega()) return cat("graph, because it decodes faster after more than ", max_mega_tokens_, " tokens");
    return graph_ || !why_graph_.empty() ? cat("graph", why_graph_) : "";
  }

  void check() override { synchronize(); }

  void download_logits(std::span<float> to) override {
    synchronize();
    stream_.download(to.data(), buffers_.logits, to.size_bytes());
  }

  void drop() override {
    synchronize();
    taken_ = started_ = ring_->written;
    is_walking_ = false;
    if (has_mega()) mega_->drop(taken_);
  }

  // --- megakernel launches of several ranks, which end together; the leader is the last rank

  // Whether the megakernel runs a step at this length.
  bool uses_mega() const { return has_mega() && state_.n_tokens() <= max_mega_tokens_; }
  bool has_launch() const { return has_mega() && mega_->is_running(); }
  uint32_t n_taken() const { return taken_; }
  // MegaSteps::follow()
  bool follow_launch(uint32_t n, const GpuTokenLoop& leader) { return has_mega() && mega_->follow(n, *leader.mega_); }
  void launch_again() { mega_->launch_again(); }
  bool has_mega() const { return mega_ && !is_mega_off_; }
  // Why this rank's launches cannot run beside another's; empty if they can.
  std::string refuses_mega(const GpuTokenLoop& beside) const {
    if (!has_mega()) return cat(", because device ", shard_, " decodes by one", why_graph_);
    return mega_->matches(*beside.mega_) ? "" : ", because the devices have different numbers of multiprocessors";
  }
  void join_mega(std::span<const std::unique_ptr<GpuTokenLoop>> loops, const StagedWords& staged) {
    gpu::MegaRanks ranks = {
        .words = {}, .logits = {}, .staged_logits = staged.logits, .rank = shard_, .n = static_cast<int>(loops.size())};
    for (int i = 0; i < ranks.n; ++i) {
      ranks.words[i] = staged.words[i] != nullptr ? staged.words[i] : loops[i]->mega_->words();
      ranks.logits[i] = loops[i]->buffers_.logits;
      max_mega_tokens_ = std::min(max_mega_tokens_, loops[i]->max_mega_tokens_);
    }
    mega_->join(ranks);
  }
  int n_words() const { return mega_->n_words(); }
  const gpu::Device& device() const { return stream_.pack().device(); }
  // From now on steps are graphs. The launch's memory stays: a late peer may still store its words there.
  void turn_off_mega(const std::string& why) {
    is_mega_off_ = true;
    why_graph_ = why;
  }
  // A launch of another rank timed out, so this rank's does too.
  void lose_launch(const std::string& why) {
    if (!has_mega()) return;
    try {
      synchronize();
    } catch (const StepLost&) {
    }
    taken_ = started_ = ring_->written;
    turn_off_mega(why);
  }
  // Waits for a launch that may still run, as the memory's release would.
  void end_launch() noexcept {
    if (!mega_) return;
    try {
      stream_.queue().synchronize();
    } catch (const Error&) {  // the device is lost, and its launches with it
    }
  }
  // Waits for token n, although another one may be next to be taken.
  void await_token(uint32_t n) { wait(n); }
  const std::string& why_graph() const { return why_graph_; }

 protected:
  // Runs a step's forward pass.
  virtual void run_forward() {
    run_step(model_, workspace_, taps_, buffers_, engine_.options().activations, state_, stream_, shard_);
  }
  virtual void replay(std::unique_ptr<Recording>& recording, const std::function<void()>& work) {
    stream_.replay(recording, work);
  }

  const Engine& engine_;
  const Model& model_;  // whose weights are on the shard
  const Workspace& workspace_;
  SequenceState& state_;
  int shard_;
  StepTaps taps_;
  GpuStream& stream_;
  std::unique_ptr<Memory> memory_;
  StepBuffers buffers_;

 private:
  StepBuffers on(const Memory& memory) const {
    Carver carver(memory);
    return StepBuffers(carver, model_, state_.capacity(), step_rows(engine_.options()));
  }

  // Uploads the inputs of a choice from a row of logits: only the mask if the sampler is bound.
  void bind_to_row(const Sampler& sampler, bool is_bound) {
    if (!is_bound) {
      bind(sampler);
    } else if (options_.has_mask != 0 || !sampler.mask().empty()) {
      send_mask(sampler.mask());
    }
  }

  Sample row_choice(const float* logits) const {
    Sample choice = sample_op(buffers_, model_.info().vocab, state_.capacity());
    choice.logits = logits;
    return choice;
  }

  // Uploads the sampler's options and state.
  void bind(const Sampler& sampler) {
    const SamplingParams& params = sampler.params();
    options_ = sample_options_of(params);
    const SampleState state{sampler.draws(), static_cast<int32_t>(sampler.history().size())};
    LB_CHECK(state.n_tokens < StepBuffers::history_capacity(state_.capacity()), kInvalid, "the sampler has seen ",
             state.n_tokens, " tokens; the context holds ", state_.capacity());
    send_mask(sampler.mask());
    stream_.upload(buffers_.state, &state, sizeof state);
    stream_.upload(buffers_.history, sampler.history().data(), sampler.history().size_bytes());
    if (options_.has_bias) send_bias(params);
    send_counts(sampler);
    stream_.run(CountWindow{.options = buffers_.options,
                            .state = buffers_.state,
                            .history = buffers_.history,
                            .counts = buffers_.counts,
                            .capacity = StepBuffers::history_capacity(state_.capacity())});
  }

  void send_bias(const SamplingParams& params) {
    std::vector<float> bias(model_.info().vocab);
    for (const auto& [id, value] : params.logit_bias)
      bias[id] = value <= -100 ? -std::numeric_limits<float>::infinity() : value;
    stream_.upload(buffers_.bias, bias.data(), bias.size() * sizeof(float));
  }

  // Counts of generated tokens; CountWindow adds the prompt's counts.
  void send_counts(const Sampler& sampler) {
    const int vocab = model_.info().vocab;
    if (sampler.generated().empty()) return stream_.zero(buffers_.counts, vocab * sizeof(TokenCounts));
    std::vector<TokenCounts> counts(vocab);
    for (const auto& [id, n] : sampler.generated()) counts[id].generated = n;
    stream_.upload(buffers_.counts, counts.data(), counts.size() * sizeof(TokenCounts));
  }

  void send_mask(std::span<const uint32_t> mask) {
    options_.has_mask = mask.empty() ? 0 : 1;
    stream_.upload(buffers_.options, &options_, sizeof options_);
    if (!mask.empty()) stream_.upload(buffers_.mask, mask.data(), mask.size_bytes());
  }

  const gpu::Target& target() const { return stream_.pack().target(); }

  // Call before a graph step: waits for the megakernel's launch, and starts another if the last one ended before it saw
  // the larger budget. Throws StepLost.
  void finish_launch() {
    for (uint32_t n = taken_; has_launch();) {
      wait(n);
      if (follow_launch(++n, *this)) launch_again();
    }
  }

  static StepTaps taps_of(const Engine& engine, int shard, std::span<const StepRing> rings) {
    if (rings.empty()) return {};
    const DraftModel& draft = engine.draft_on(shard);
    return {draft.taps(), engine.buffers_of(shard, engine.buffers()).draft.taps, rings[shard].rows, draft.tap_width()};
  }

  void make_mega() {
    max_mega_tokens_ = max_mega_tokens(model_, state_, engine_.options(), target());
    const size_t max_tokens = std::clamp(kLaunchBytes / engine_.model().bytes_per_token(), size_t(1), kLaunchTokens);
    mega_.emplace(
        plan_mega(model_, engine_.options().activations, state_, workspace_, taps_, buffers_, ring_, target(), shard_),
        &buffers_.start->keep_going, int(max_tokens), ring_, stream_);
  }

  void run_choice() {
    stream_.run(sample_op(buffers_, model_.info().vocab, state_.capacity()), buffers_.scratch);
    stream_.run(next_token_op(buffers_, ring_, state_.numbers(shard_)));
  }

  // Waits until token n, and perhaps later ones, are written, or a rank has failed. The device writes `written` last.
  // After a device error it never does, so a long wait asks for errors. It does not wait for the queue, which may have
  // other sessions' passes or be in a recording.
  void wait(uint32_t n) {
    const std::atomic_ref<uint32_t> written(ring_->written);
    const auto is_there = [&] { return int32_t(written.load(std::memory_order_acquire) - n) > 0; };
    for (unsigned spin = 1; !is_there(); ++spin) {
      if (spin % kSpins != 0) continue;
      if (stream_.has_failed_device()) return;
      if (!stream_.is_done()) continue;
      check_stuck();
      LB_ASSERT(is_there());
    }
    if (stuck() != 0) synchronize();  // the launch timed out: the token is invalid
  }

  uint32_t stuck() const { return std::atomic_ref(ring_->report.stuck).load(std::memory_order_relaxed); }

  // Throws device errors, and StepLost if a megakernel block timed out.
  void synchronize() {
    stream_.synchronize();
    check_stuck();
  }

  // A time-out may recur, so the session switches to the graph.
  void check_stuck() {
    const uint32_t stuck_at = stuck();  // 1 + the phase
    if (stuck_at == 0) return;
    ring_->report.stuck = 0;
    taken_ = started_ = ring_->written;
    const bool has_peers = engine_.is_split_by_tensors();
    const std::string what =
        cat("a block of the megakernel waited ", MegaSteps::kTimeoutNs / 1000000000, " s for the other blocks",
            has_peers ? ", or for another device," : "", " to finish the phase before phase ", stuck_at - 1);
    turn_off_mega(", because " + what);
    throw StepLost(has_peers ? ErrorCode::kDevice : ErrorCode::kInternal,
                   cat("[megakernel] ", what, has_peers ? "" : "; the schedule or the kernel is wrong",
                       ". The session is empty now and will decode with the graph"));
  }
  static constexpr unsigned kSpins = 1 << 20;  // about a millisecond

  std::vector<float*> logits_;  // [shards] of buffers_; null on others
  gpu::Buffer ring_memory_;
  Ring* ring_;
  gpu::Buffer fetched_;  // a Draft in pinned memory
  std::unique_ptr<Recording> graph_, forward_;
  SampleOptions options_{};  // as on the device
  std::optional<MegaSteps> mega_;
  bool is_mega_off_ = false;
  int max_mega_tokens_ = 0;
  std::string why_graph_;  // why the preferred megakernel is not used
  uint32_t started_ = 0, taken_ = 0;
  bool is_walking_ = false;  // walking a tree: the number of tokens to come is unknown
  Sampled last_{};
};

}  // namespace lb
