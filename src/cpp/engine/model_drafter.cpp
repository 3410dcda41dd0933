#include "engine/model_drafter.h"

#include <algorithm>

#include "base/error.h"

namespace lb {

ModelDrafter::ModelDrafter(Timeline& timeline, std::span<const TreeMemory> memory)
    : timeline_(timeline), memory_(memory), recordings_(memory.size()) {
  LB_ASSERT(model().max_depth() < kMaxTree);
}

int ModelDrafter::depth(int max_rows, int max_depth) const {
  return std::min({model().max_depth(), max_rows - 1, max_depth});
}

int ModelDrafter::max_tree(int max_rows, int depth) const {
  long rows = 1, level = 1;
  for (; depth > 0 && rows < max_rows; --depth) rows += level *= model().n_candidates();
  return static_cast<int>(std::min<long>(rows, max_rows));
}

bool ModelDrafter::start(const DraftRequest& request) {
  SequenceState& state = timeline_.state();
  const int end = state.n_tokens() + model().max_depth() + 1;
  const std::lock_guard lock(timeline_.turn());
  if (end > state.capacity() || !state.reserve(end)) return false;
  send(request.root, depth(request.max_rows, request.max_depth));
  return true;
}

void ModelDrafter::send(int32_t root, int depth) {
  SequenceState& state = timeline_.state();
  const int n_past = state.n_tokens(), last_slot = n_past - 1, n_positions = model().max_depth() + 1;
  timeline_.settle_steps();
  state.begin_draft(n_positions);
  std::array<int32_t, 3 * kMaxTree> positions;
  for (int axis = 0; axis < 3; ++axis)
    for (int r = 0; r < n_positions; ++r) positions[axis * n_positions + r] = n_past + r;
  for (const int i : timeline_.engine().drafting_shards()) {
    Stream& stream = state.stream_of(i);
    stream.upload(memory_[i].root.token, &root, sizeof root);
    stream.upload(memory_[i].root.positions, positions.data(), 3 * n_positions * sizeof(int32_t));
    stream.upload(memory_[i].root.last_slot, &last_slot, sizeof last_slot);
  }
  send(depth);
}

void ModelDrafter::send(int depth) {
  sent_depth_ = depth;
  const Engine& engine = timeline_.engine();
  SequenceState& state = timeline_.state();
  for (const int i : engine.drafting_shards()) {
    Stream& stream = state.stream_of(i);
    stream.replay(recordings_[i][depth], [&] {
      DraftWorkspace workspace = engine.buffers_of(i, engine.buffers()).draft;
      workspace.ids = memory_[i].ids;
      workspace.logprobs = memory_[i].logprobs;
      engine.draft_on(i).propose(memory_[i].root, depth, state, workspace, engine.options().activations, stream);
    });
  }
}

void ModelDrafter::grow(int shard, int max_rows, int rows) {
  const TreeMemory& memory = memory_[shard];
  Draft& tree = *memory.tree;
  run(GrowTree{.ids = memory.ids,
               .logprobs = is_replayed_ ? memory.replay_logprobs : memory.logprobs,
               .root = memory.root.token,
               .n_past = timeline_.state().n_past(shard),
               .n_rows = &tree.rows,
               .tokens = tree.tokens,
               .parents = tree.parents,
               .depths = tree.depths,
               .scores = tree.scores,
               .ancestors = tree.ancestors,
               .positions = memory.positions,
               .sequences = 1,
               .depth = std::min(sent_depth_, max_rows - 1),
               .k = model().n_candidates(),
               .max_rows = max_rows,
               .rows = rows},
      timeline_.state().stream_of(shard));
}

Draft ModelDrafter::tree(int max_rows) {
  const std::lock_guard lock(timeline_.turn());
  Draft tree;
  const auto shards = timeline_.engine().drafting_shards();
  for (const int i : shards) grow(i, max_rows, 1);
  timeline_.state().stream_of(shards.back()).download(&tree, memory_[shards.back()].tree, sizeof tree);
  return tree;
}

bool ModelDrafter::fits_ahead() {
  const int n_longest = timeline_.state().n_tokens() + sent_depth_ + 1;
  const int end = n_longest + model().max_depth() + 1;
  return end <= timeline_.context() && timeline_.state().reserve(end);
}

AcceptPath ModelDrafter::accept_path(int shard) {
  AppendNumbers& numbers = *timeline_.state().numbers(shard);
  return {.n_before = memory_[shard].n_before,
          .n_past = &numbers.n_past,
          .key_buffer = &numbers.key_buffer,
          .n_accepted = &numbers.n_accepted,
          .accepted = numbers.accepted,
          .root = memory_[shard].root.token,
          .positions = memory_[shard].root.positions,
          .last_slot = memory_[shard].root.last_slot,
          .n_positions = model().max_depth() + 1};
}

int ModelDrafter::first_moved_layer() const {
  return model().reads_target_cache() ? 0 : timeline_.engine().model().info().n_layers;
}

void ModelDrafter::send_moves() {
  SequenceState& state = timeline_.state();
  for (size_t i = 0; i < memory_.size(); ++i)
    state.send_moves(int(i), first_moved_layer(), static_cast<int>(state.layers().size()), memory_[i].n_before);
}

}  // namespace lb
