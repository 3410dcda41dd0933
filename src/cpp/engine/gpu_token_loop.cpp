// Loops of models on one device and of models that are split by layers; the choice of a model's loop.
#include "engine/gpu_token_loop.h"

#include "engine/device_loop.h"
#include "engine/rank_loops.h"

namespace lb {
namespace {

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
  int32_t take() override {
    const int n_failures = engine_.n_device_failures();
    const int32_t token = GpuTokenLoop::take();
    if (engine_.n_device_failures() != n_failures) throw StepLost(ErrorCode::kDevice, kLostToken);
    return token;
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

std::unique_ptr<TokenLoop> gpu_token_loop(const Engine& engine, SequenceState& state, std::span<const StepRing> rings) {
  if (engine.is_split_by_tensors()) return std::make_unique<RankLoops>(engine, state, rings);
  if (engine.is_split_by_layers()) return std::make_unique<LayerLoop>(engine, state, rings);
  return std::make_unique<GpuTokenLoop>(engine, state, engine.first_target_shard(), rings);
}

}  // namespace lb
