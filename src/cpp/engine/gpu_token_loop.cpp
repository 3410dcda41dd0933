// The GPU's token loop. One arena per session holds the sampler's state and separate logits, token and positions,
// because any session may overwrite the pass buffers'. Results arrive through a ring in pinned memory. A step is a
// megakernel launch if the options require it, or if the target's megakernel is faster at this model size and context
// length. Otherwise a step is a graph replay.
#include "engine/gpu_token_loop.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <limits>
#include <mutex>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "base/error.h"
#include "dispatch/gpu_stream.h"
#include "dispatch/rank_group.h"
#include "engine/engine.h"
#include "engine/mega_steps.h"
#include "gpu/megakernel/shape.h"
#include "state/pieces.h"

namespace lb {
namespace {

// Limits of one launch, in bytes of weights read and in tokens: longer launches make other sessions wait; shorter ones
// pay a few microseconds of launch cost more often.
constexpr size_t kLaunchBytes = size_t{64} << 30, kLaunchTokens = SequenceState::kLaunchTokens;

// StepRows::compute() is sent at the end of a page and may run after a launch that continues past that page. No step of
// that launch may overwrite the page's rows in the ring, or the row before them.
static_assert(kLaunchTokens + kPageTokens <= StepRing::kRows);

// Adjacent, so that one read fetches both.
struct StepStart {
  int32_t token;
  uint32_t keep_going;  // gpu::TokenBudget
};

int step_rows(const EngineOptions& options) {
  return options.batch_invariant ? std::min(kMaxStepRows, PassBuffers::step_rows(options)) : 1;
}

struct Buffers {
  float* logits;  // [rows, vocab]
  StepStart* start;
  int32_t* padded;     // [rows] the token and zeros of a step of more than one row
  int32_t* positions;  // [3, rows]
  SampleOptions* options;
  float* bias;
  uint32_t* mask;
  TokenCounts* counts;
  int32_t* history;
  SampleState* state;
  Sampled* result;
  uint32_t* n_written;
  std::byte* scratch;

  int rows;

  Buffers(Carver& carver, const Model& model, int context, int rows)
      : Buffers(carver, model.info().vocab, context, rows) {}

  int32_t* tokens() const { return rows == 1 ? &start->token : padded; }  // [rows] of a step

  // Capacity for the context, the token just beyond it, and the token chosen ahead.
  static int history_capacity(int context) { return context + 2; }

 private:
  Buffers(Carver& carver, int vocab, int context, int rows)
      : logits(carver.take<float>(size_t(rows) * vocab)),
        start(carver.take<StepStart>(1)),
        padded(carver.take<int32_t>(rows == 1 ? 0 : rows)),
        positions(carver.take<int32_t>(3 * rows)),
        options(carver.take<SampleOptions>(1)),
        bias(carver.take<float>(vocab)),
        mask(carver.take<uint32_t>(mask_words(vocab))),
        counts(carver.take<TokenCounts>(vocab)),
        history(carver.take<int32_t>(history_capacity(context))),
        state(carver.take<SampleState>(1)),
        result(carver.take<Sampled>(1)),
        n_written(carver.take<uint32_t>(1)),
        scratch(carver.take<std::byte>(gpu::sample_scratch_bytes(vocab))),
        rows(rows) {}
};

Sample sample_op(const Buffers& b, int vocab, int context) {
  return {.logits = b.logits,
          .options = b.options,
          .bias = b.bias,
          .mask = b.mask,
          .counts = b.counts,
          .history = b.history,
          .state = b.state,
          .result = b.result,
          .vocab = vocab,
          .capacity = Buffers::history_capacity(context)};
}

NextToken next_token_op(const Buffers& b, Ring* ring, AppendNumbers* numbers) {
  return {.sampled = b.result,
          .ring = {ring->slots.data(), &ring->written, Ring::kSlots},
          .n_written = b.n_written,
          .token = b.tokens(),
          .n_past = &numbers->n_past,
          .key_buffer = &numbers->key_buffer,
          .n_accepted = &numbers->n_accepted,
          .accepted = numbers->accepted,
          .positions = b.positions,
          .n_positions = 3 * b.rows};
}

// The tapped row of a step, for the draft model: computed in `row`, then copied to a ring. No layers: no taps.
struct StepTaps {
  std::span<const int> layers{};
  float* row = nullptr;   // [width]
  float* ring = nullptr;  // [StepRing::kRows, width]
  int width = 0;

  void keep(const int32_t* slot, Stream& stream) const {
    if (layers.empty()) return;
    run(
        CopyRows{
            .x = row, .y = ring, .rows = 1, .dim = width, .y_rows = StepRing::kRows, .y_stride = width, .first = slot},
        stream);
  }
};

// Runs a step's forward pass.
void run_step(const Model& model, const Workspace& workspace, const StepTaps& taps, const Buffers& b,
              Activations activations, SequenceState& state, Stream& stream, int shard = 0) {
  const Segment row{0, 1, {}, state.n_past(shard), &state, shard};
  const Append append = {.tokens = {b.tokens(), size_t(b.rows)},
                         .positions = {b.positions, 3 * size_t(b.rows)},
                         .segments = {&row, 1},
                         .outputs = {taps.layers, taps.row},
                         .interrupted = nullptr};
  model.forward(append, workspace, activations, stream);
  taps.keep(state.n_past(shard), stream);
  model.head(workspace.y, b.rows, b.logits, activations, stream);
}

bool wants_mega(const Model& model, const EngineOptions& options, const gpu::Target& target) {
  const size_t max_bytes = size_t(target.tune("megakernel_max_mib")) << 20;
  const int slots = model.expert_slots();
  LB_CHECK(!options.batch_invariant || options.decode_path != DecodePath::kMegakernel, kInvalid,
           "decode_path = megakernel has sums of another order than batch_invariant. Use auto or graph");
  if (options.batch_invariant) return false;
  LB_CHECK(slots == 0 || options.decode_path != DecodePath::kMegakernel, kUnsupported,
           "decode_path = megakernel: the megakernel needs all experts in device memory, and ", slots, " of the ",
           model.info().experts.n, " of each layer are there. Use auto or graph");
  // The megakernel sums in another order than the graph, which alone decodes with experts in slots. No bit may depend
  // on where experts are, so the megakernel decodes a mixture only if the options name it.
  const bool is_mixture = model.info().experts.n > 0;
  LB_CHECK(
      !is_mixture || !model.is_slice() || options.decode_path != DecodePath::kMegakernel, kUnsupported,
      "decode_path = megakernel: the megakernel takes no mixture of experts that is split by tensors. Use auto or ",
      "graph");
  return options.decode_path == DecodePath::kMegakernel ||
         (options.decode_path == DecodePath::kAuto && !is_mixture && model.bytes_per_token() <= max_bytes);
}

// The longest context, in tokens, at which the megakernel runs the steps: the graph reads long K and V faster. A
// megakernel tile has a fixed number of slots, so it reads heads of half the width half as fast. It dequantises packed
// KV types with no more threads than it has for f16, so there the graph catches up at half the length
// (docs/kernels/megakernel.md).
int max_mega_tokens(const Model& model, const SequenceState& state, const EngineOptions& options,
                    const gpu::Target& target) {
  if (options.decode_path == DecodePath::kMegakernel) return state.capacity();
  StateOptions counted = state.options();
  for (KvType* type : {&counted.k_type, &counted.v_type})
    if (kKvTraits[int(*type)].bits < 16) *type = KvType::kF32;
  int max_head_dim = 1;
  size_t page = 0;
  for (const LayerShape& shape : model.layer_shapes())
    if (const auto* kv = std::get_if<KvShape>(&shape)) {
      max_head_dim = std::max(max_head_dim, kv->head_dim);
      if (kv->window == 0) page += page_bytes(*kv, counted);
    }
  const size_t bytes = (size_t(target.tune("megakernel_max_kv_mib")) << 20) * max_head_dim / gpu::kSplitMaxDim;
  return int(std::min(bytes * kPageTokens / std::max(page, size_t(1)), size_t(state.capacity())));
}

// Whether a graph may replace the megakernel: not if the options name the megakernel.
bool allows_graph(const Error& error, const EngineOptions& options) {
  return options.decode_path == DecodePath::kAuto && error.code() == ErrorCode::kUnsupported;
}

// Compiles a decode step of a new sequence. Throws kUnsupported if the target has no kernel for it.
gpu::MegaPlan plan_mega(const Model& model, Activations activations, SequenceState& state, const Workspace& workspace,
                        const StepTaps& taps, const Buffers& b, Ring* ring, const gpu::Target& target, int shard = 0) {
  gpu::Schedule schedule(target);
  state.begin_plan();
  try {
    run_step(model, workspace, taps, b, activations, state, schedule, shard);
  } catch (...) {
    state.abort_append();
    throw;
  }
  state.abort_append();  // nothing was computed
  const gpu::SampleLaunches sample = gpu::choose(sample_op(b, model.info().vocab, state.capacity()), b.scratch, target);
  return schedule.compile(sample.params, next_token_op(b, ring, state.numbers(shard)),
                          {&ring->allowed, &ring->ended, &b.start->keep_going});
}

// What the ranks' megakernels exchange in pinned host memory, where devices cannot reach each other; else null.
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
    if (stream_.has_failed_rank()) {
      const std::lock_guard lock(engine_.buffers().turn);  // other sessions may be sending
      stream_.check_ranks();
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
  Buffers buffers_;

 private:
  Buffers on(const Memory& memory) const {
    Carver carver(memory);
    return Buffers(carver, model_, state_.capacity(), step_rows(engine_.options()));
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
    LB_CHECK(state.n_tokens < Buffers::history_capacity(state_.capacity()), kInvalid, "the sampler has seen ",
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
                            .capacity = Buffers::history_capacity(state_.capacity())});
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
      if (stream_.has_failed_rank()) return;
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

// The loop of a model that is split by layers: the last shard chooses the tokens. The other shards take a step's inputs
// in their pass buffers, which no other work writes before the step reads them.
class LayerLoop final : public GpuTokenLoop {
 public:
  LayerLoop(const Engine& engine, SequenceState& state, std::span<const StepRing> rings)
      : GpuTokenLoop(engine, state, engine.first_head_shard(), rings),
        segments_(engine.n_shards()),
        appends_(engine.n_shards()) {}

  void place(int position) override {
    GpuTokenLoop::place(position);
    position_ = position;
  }
  void step() override {
    send_inputs();
    GpuTokenLoop::step();
  }
  void step_only() override {
    send_inputs();
    GpuTokenLoop::step_only();
  }

 private:
  const PassBuffers& buffers_of(int shard) const { return engine_.buffers_of(shard, engine_.buffers()); }

  void send_inputs() {
    std::array<int32_t, 3 * kMaxStepRows> positions;
    positions.fill(position_++);
    for (int i = 0; i < shard_; ++i)
      state_.stream_of(i).upload(buffers_of(i).positions, positions.data(), 3 * buffers_.rows * sizeof(int32_t));
    engine_.hand_over_tokens(buffers_of(0).tokens, buffers_.tokens(), buffers_.rows);
  }

  void run_forward() override {
    const size_t rows = buffers_.rows;
    for (int i = 0; i <= shard_; ++i) {
      const PassBuffers& own = buffers_of(i);
      segments_[i] = {0, 1, {}, state_.n_past(i), &state_, i};
      appends_[i] = {.tokens = {i < shard_ ? own.tokens : buffers_.tokens(), rows},
                     .positions = {i < shard_ ? own.positions : buffers_.positions, 3 * rows},
                     .segments = {&segments_[i], 1}};
    }
    engine_.forward_layers(engine_.buffers(), appends_);
    taps_.keep(state_.n_past(shard_), stream_);
    engine_.head_on(shard_, engine_.buffers(), 0, buffers_.rows, buffers_.logits);
  }
  void replay(std::unique_ptr<Recording>& recording, const std::function<void()>& work) override {
    engine_.linked_streams().replay(recording, work);
  }

  // [shards] of a step
  std::vector<Segment> segments_;
  std::vector<Append> appends_;
  int position_ = 0;  // of the next step
};

// The loops of all ranks of a model that is split by tensors. Every rank has all logits, and the same trees, so all
// loops choose the same tokens and accept the same paths; the host reads the last rank's.
class RankLoops final : public TokenLoop {
 public:
  RankLoops(const Engine& engine, SequenceState& state, std::span<const StepRing> rings)
      : engine_(engine), n_failures_(engine.n_rank_failures()) {
    for (int i = 0; i < engine.n_shards(); ++i) {
      loops_.push_back(std::make_unique<GpuTokenLoop>(engine, state, i, rings));
      logits_.push_back(loops_[i]->logits()[i]);
    }
    join_mega();
  }
  // Peers store into the memory of each rank, so all launches end before any memory is freed.
  ~RankLoops() override {
    for (const auto& loop : loops_) loop->end_launch();
  }

  void sample(const Sampler& sampler, std::span<const float> logits) override {
    for (const auto& loop : loops_) loop->sample(sampler, logits);
  }
  std::span<float* const> logits() const override { return logits_; }
  void sample_row(const Sampler& sampler, const LogitsRow& logits, bool is_bound) override {
    const RowChoice choice{this, &sampler, logits, is_bound};
    sample_rows({&choice, 1});
  }
  void sample_rows(std::span<const RowChoice> choices) override {
    std::vector<RowChoice> own(choices.begin(), choices.end());
    for (size_t rank = 0; rank < loops_.size(); ++rank) {
      for (size_t i = 0; i < choices.size(); ++i)
        own[i].loop = static_cast<const RankLoops&>(*choices[i].loop).loops_[rank].get();
      loops_[rank]->sample_rows(own);
    }
  }
  void start_walk(const Sampler& sampler, std::span<const VerifiedTree> trees, bool is_bound) override {
    for (const auto& loop : loops_) loop->start_walk(sampler, trees, is_bound);
  }
  void fetch(const Draft* tree) override { last().fetch(tree); }
  const Draft& fetched() const override { return last().fetched(); }
  void enter(int32_t token) override {
    for (const auto& loop : loops_) loop->enter(token);
  }
  void place(int position) override {
    for (const auto& loop : loops_) loop->place(position);
  }
  void step() override {
    guard([&] {
      if (!last().uses_mega()) finish_launches();
      for (const auto& loop : loops_) loop->step();
    });
  }
  void step_only() override {
    for (const auto& loop : loops_) loop->step_only();
  }
  void choose(std::span<const uint32_t> mask) override {
    for (const auto& loop : loops_) loop->choose(mask);
  }
  void await() override {
    guard([&] { last().await(); });
  }
  int32_t take() override {
    const auto skip = [&] {
      for (size_t rank = 0; rank + 1 < loops_.size(); ++rank) loops_[rank]->skip(last());
    };
    std::string why = "a device failed while it computed the token; call sync() to compute it again";
    int32_t token = 0;
    try {
      guard([&] { token = last().take(); });
      skip();
      if (follow_launches(last().n_taken())) {
        const std::lock_guard lock(engine_.buffers().turn);  // other sessions may be sending
        launch_again();
      }
    } catch (const Error& error) {
      skip();
      if (engine_.n_rank_failures() == n_failures_) throw;
      why = error.what();
    }
    if (engine_.n_rank_failures() == n_failures_) return token;
    if (!engine_.ranks()->is_stopped()) {                  // else Session::drop_lost() drops
      const std::lock_guard lock(engine_.buffers().turn);  // other sessions may be sending
      drop();
    }
    throw StepLost(ErrorCode::kDevice, why);
  }
  Logprobs logprobs(int n_top) const override { return last().logprobs(n_top); }
  void download_logits(std::span<float> to) override {
    guard([&] { last().download_logits(to); });
  }
  void check() override {
    guard([&] {
      for (const auto& loop : loops_) loop->check();
    });
  }
  std::string name() const override { return last().name(); }
  StepTimeline timeline() override { return last().timeline(); }
  void drop() override {
    guard([&] {
      for (const auto& loop : loops_) loop->drop();
    });
    n_failures_ = engine_.n_rank_failures();
  }

 private:
  GpuTokenLoop& last() const { return *loops_.back(); }

  // All ranks' steps are launches of the megakernel, or none.
  void join_mega() {
    const auto first =
        std::ranges::find_if(loops_, &GpuTokenLoop::has_mega, [](const auto& loop) -> auto& { return *loop; });
    if (first == loops_.end()) return;
    for (const auto& loop : loops_) {
      const std::string why = loop->refuses_mega(**first);
      if (why.empty()) continue;
      LB_CHECK(engine_.options().decode_path != DecodePath::kMegakernel, kUnsupported,
               "decode_path = megakernel: a graph decodes", why, ". Use auto or graph");
      for (const auto& each : loops_) each->turn_off_mega(why);
      return;
    }
    StagedWords staged;
    if (engine_.ranks()->path() == LinkPath::kHost) {
      const int n_words = last().n_words(), vocab = engine_.model().info().vocab;
      const auto carve = [&](Carver& carver) {
        for (size_t i = 0; i < loops_.size(); ++i) staged.words[i] = carver.take<gpu::Mailbox>(n_words);
        staged.logits = carver.take<float>(vocab);
      };
      Carver counter;
      carve(counter);
      staged_.emplace(last().device(), counter.used(), gpu::Buffer::Kind::kPinned);
      std::ranges::fill(std::span(staged_->data(), staged_->size()), std::byte{});
      Carver carver(std::span(staged_->data(), staged_->size()));
      carve(carver);
    }
    for (const auto& loop : loops_) loop->join_mega(loops_, staged);
  }

  // Whether the ranks' launches ended at token n although more were requested.
  bool follow_launches(uint32_t n) {
    bool ended = false;
    for (const auto& loop : loops_) ended = loop->follow_launch(n, last()) || ended;
    return ended;
  }
  // All ranks must get launches in one order, so the caller has the turn.
  void launch_again() {
    for (const auto& loop : loops_) loop->launch_again();
  }
  // GpuTokenLoop::finish_launch() for all ranks.
  void finish_launches() {
    for (uint32_t n = last().n_taken(); last().has_launch();) {
      last().await_token(n);
      if (follow_launches(++n)) launch_again();
    }
  }

  // If a rank's launch times out, so do the peers', which wait for it: all decode with graphs from then on.
  void guard(const std::function<void()>& work) {
    try {
      work();
    } catch (const StepLost&) {
      std::string why;
      for (const auto& loop : loops_) why = why.empty() ? loop->why_graph() : why;
      for (const auto& loop : loops_) loop->lose_launch(why);
      throw;
    }
  }

  const Engine& engine_;
  int n_failures_;                                    // Engine::n_rank_failures() that the tokens to take belong to
  std::vector<std::unique_ptr<GpuTokenLoop>> loops_;  // [ranks]
  std::vector<float*> logits_;                        // [ranks]
  std::optional<gpu::Buffer> staged_;                 // StagedWords
};

}  // namespace

SampleOptions sample_options_of(const SamplingParams& p) {
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
          .n_top = p.logprobs,
          .seed = p.seed};
}

size_t gpu_token_loop_bytes(const Model& model, const EngineOptions& options, int context) {
  Carver counter;
  Buffers(counter, model, context, step_rows(options));
  return counter.used();
}

size_t gpu_step_bytes(const Models& models, const EngineOptions& options, const gpu::Target& target) {
  const Model& model = *models.target;
  if (!wants_mega(model, options, target)) return 0;
  const int context = options.context == 0 ? kPageTokens : options.context;  // any: the tables do not depend on it
  gpu::Schedule planner(target);
  SequenceState state({model.layer_shapes().begin(), model.layer_shapes().end()}, {context, options.kv.k, options.kv.v},
                      planner);
  const auto workspace = planner.reserve(model.workspace_bytes(1)),
             memory = planner.reserve(gpu_token_loop_bytes(model, options, context));
  const int width = models.draft ? models.draft->tap_width() : 0;
  const auto row = planner.reserve(width * sizeof(float)), step_ring = planner.reserve(width * sizeof(float));
  const auto floats = [](const Memory& at) { return reinterpret_cast<float*>(at.data()); };
  StepTaps taps;
  if (models.draft) taps = {models.draft->taps(), floats(*row), floats(*step_ring), width};
  Carver carver(*memory);
  Ring ring{};
  try {
    return MegaSteps::planned_bytes(plan_mega(model, options.activations, state, model.workspace(Carver(*workspace), 1),
                                              taps, Buffers(carver, model, context, 1), &ring, target));
  } catch (const Error& error) {
    if (!allows_graph(error, options)) throw;
    return 0;
  }
}

std::unique_ptr<TokenLoop> gpu_token_loop(const Engine& engine, SequenceState& state, std::span<const StepRing> rings) {
  if (engine.is_split_by_tensors()) return std::make_unique<RankLoops>(engine, state, rings);
  if (engine.is_split_by_layers()) return std::make_unique<LayerLoop>(engine, state, rings);
  return std::make_unique<GpuTokenLoop>(engine, state, engine.first_target_shard(), rings);
}

}  // namespace lb
