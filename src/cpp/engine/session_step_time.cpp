// The time of a speculative step on a device, as a whole without gaps and by its parts.
#include <array>
#include <chrono>

#include "base/error.h"
#include "engine/session.h"

namespace lb {

DraftStepTimes Session::time_draft_step(std::span<const int32_t> ids, int rows, int n) {
  using Clock = std::chrono::steady_clock;
  LB_CHECK(loop_ != nullptr && engine_->draft_model() != nullptr, kUnsupported,
           "a GPU and a draft model have such steps; this engine runs on ", engine_->plan().device, " with draft ",
           engine_->options().draft);
  sync(ids);
  drop_step();
  has_logits_ = false;
  const int max_rows = draft_room(), n_layers = static_cast<int>(state_.layers().size());
  const int most = max_rows < 2 ? 0 : max_tree(max_rows, draft_depth(max_rows));
  LB_CHECK(n >= 1 && rows >= 2 && rows <= most, kInvalid, "a step verifies 2 to ", most, " rows here, not ", rows);
  Sampler greedy({}, engine_->model().info().vocab);
  const std::lock_guard lock(engine_->executor().mutex);
  Stream& stream = state_.stream();
  tree_row_ = 0;
  walk_.draft().rows = rows;
  const std::array<std::pair<double DraftStepTimes::*, Work>, 5> parts = {{
      {&DraftStepTimes::draft_ms, [&] { start_draft(ids.back(), max_rows); }},
      {&DraftStepTimes::tree_ms, [&] { grow_tree(max_rows, rows); }},
      {&DraftStepTimes::verify_ms,
       [&] {
         run_rows(rows, true, [](Stream&, const RowInputs&) {}, {}, nullptr);
         head(engine_->executor(), 0, rows, tree_.logits);
       }},
      {&DraftStepTimes::walk_ms, [&] { start_walk(greedy, accepted_by_device()); }},
      {&DraftStepTimes::commit_ms, [&] { state_.send_moves(0, n_layers, tree_.n_before); }},
  }};
  const auto step = [&] {
    for (const auto& [part, work] : parts) work();
    state_.commit({});
  };
  DraftStepTimes times{};
  constexpr int kWarmUp = 3;  // the third replays recordings
  for (int i = 0; i < kWarmUp; ++i) step();
  stream.wait();
  loop_->drop();
  const Clock::time_point start = Clock::now();
  for (int i = 0; i < n; ++i) step();
  stream.wait();
  times.step_ms = std::chrono::duration<double, std::milli>(Clock::now() - start).count() / n;
  for (const auto& [part, work] : parts)
    for (const gpu::KernelTime& time : engine_->backend().time_kernels(stream, work)) times.*part += time.seconds * 1e3;
  state_.commit({});
  loop_->drop();
  loop_sampler_ = 0;
  return times;
}

}  // namespace lb
