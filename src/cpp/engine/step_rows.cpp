// Computes the draft model's rows of plain steps. The missing rows are all in one page, because compute() runs before a
// step begins another page.
#include "engine/step_rows.h"

#include <algorithm>

#include "base/error.h"

namespace lb {

size_t StepRows::planned_bytes(const DraftModel& model) {
  return sizeof(float) * StepRing::kRows * size_t(model.tap_width());
}

StepRows::StepRows(const Engine& engine, SequenceState& state)
    : engine_(engine), state_(state), recordings_(engine.n_shards()) {
  rings_.resize(engine.n_shards());
  for (int i = 0; i < engine.n_shards(); ++i) {
    if (!engine.shards()[i]->part().is_last()) continue;
    const Memory& memory = *memories_.emplace_back(state.stream_of(i).reserve(planned_bytes(engine.draft_on(i))));
    Carver carver(memory);
    rings_[i] = {carver.take<float>(memory.size() / sizeof(float))};
  }
}

bool StepRows::is_full() const {
  const int n = state_.n_tokens();
  return first_missing_ < n && n % kPageTokens == 0;
}

void StepRows::begin_step() {
  const int slot = state_.n_tokens();
  first_missing_ = std::min(first_missing_, slot);
  if (engine_.has_draft_shard() && newest_ < 0) state_.send_numbers(0);  // a step's are on the target's shard alone
  if (newest_ < 0)
    for (const int i : engine_.drafting_shards())
      engine_.draft_on(i).begin_steps(rings_[i], slot, state_, state_.stream_of(i));
  newest_ = slot;
}

void StepRows::compute(std::span<const int32_t> tokens) {
  const int n = state_.n_tokens(), max_rows = engine_.buffers().max_rows;
  for (; first_missing_ < n; first_missing_ = std::min(n, first_missing_ + max_rows))
    compute(first_missing_, std::min(n - first_missing_, max_rows), tokens);
}

void StepRows::compute(int first, int rows, std::span<const int32_t> tokens) {
  LB_ASSERT(first / kPageTokens == (first + rows - 1) / kPageTokens && first + rows <= int(tokens.size()));
  if (engine_.has_draft_shard()) {
    const size_t at = size_t(first % StepRing::kRows) * engine_.draft_model()->tap_width();
    engine_.hand_over_taps(rings_[0].rows + at, rings_[1].rows + at, rows);
  }
  for (const int i : engine_.drafting_shards()) compute_on(i, first, rows, tokens);
}

void StepRows::compute_on(int shard, int first, int rows, std::span<const int32_t> tokens) {
  const PassBuffers& buffers = engine_.buffers_of(shard, engine_.buffers());
  Stream& stream = state_.stream_of(shard);
  std::array<int32_t, 3 * kPageTokens> positions;
  for (int i = 0; i < 3 * rows; ++i) positions[i] = first + i % rows;
  stream.upload(buffers.tokens, tokens.data() + first, rows * sizeof(int32_t));
  stream.upload(buffers.positions, positions.data(), 3 * rows * sizeof(int32_t));
  stream.upload(buffers.draft_n_past, &first, sizeof first);
  const Segment segment{0, rows, {}, buffers.draft_n_past, &state_, shard};
  const auto send = [&] {
    engine_.draft_on(shard).step_context(rings_[shard], first,
                                         {.taps = nullptr,
                                          .tokens = buffers.tokens,
                                          .positions = buffers.positions,
                                          .rows = rows,
                                          .segments = {&segment, 1}},
                                         buffers.draft, engine_.options().activations, stream);
  };
  if (rows < kPageTokens) return send();
  auto& recordings = recordings_[shard];
  stream.replay(recordings[first / kPageTokens % recordings.size()], send);
}

void StepRows::settle(std::span<const int32_t> tokens) {
  if (newest_ < 0) return;
  compute(tokens);
  for (const int i : engine_.drafting_shards())
    engine_.draft_on(i).end_steps(rings_[i], newest_, state_, state_.stream_of(i));
  reset();
}

void StepRows::reset() {
  first_missing_ = kNone;
  newest_ = -1;
}

}  // namespace lb
