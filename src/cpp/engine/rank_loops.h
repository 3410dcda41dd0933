// RankLoops: the loops of all ranks of a model that is split by tensors. Every rank has all logits, and the same trees,
// so all loops choose the same tokens and accept the same paths; the host reads the last rank's.
#pragma once

#include "dispatch/rank_group.h"
#include "engine/device_loop.h"

namespace lb {

class RankLoops final : public TokenLoop {
 public:
  RankLoops(const Engine& engine, SequenceState& state, std::span<const StepRing> rings)
      : engine_(engine), n_failures_(engine.n_device_failures()) {
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
    std::string why = kLostToken;
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
      if (engine_.n_device_failures() == n_failures_) throw;
      why = error.what();
    }
    if (engine_.n_device_failures() == n_failures_) return token;
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
    n_failures_ = engine_.n_device_failures();
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
  int n_failures_;                                    // Engine::n_device_failures() that the tokens to take belong to
  std::vector<std::unique_ptr<GpuTokenLoop>> loops_;  // [ranks]
  std::vector<float*> logits_;                        // [ranks]
  std::optional<gpu::Buffer> staged_;                 // StagedWords
};

}  // namespace lb
