#include "engine/model_drafter.h"

#include <algorithm>

#include "base/error.h"

namespace lb {

ModelDrafter::ModelDrafter(Timeline& timeline, const TreeMemory& memory)
    : timeline_(timeline), memory_(memory), logprobs_(memory.logprobs) {
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
  const int n_past = state.n_tokens(), n_positions = model().max_depth() + 1;
  Stream& stream = timeline_.stream();
  timeline_.settle_steps();
  state.begin_draft(n_positions);
  stream.upload(memory_.root.token, &root, sizeof root);
  std::array<int32_t, 3 * kMaxTree> positions;
  for (int axis = 0; axis < 3; ++axis)
    for (int r = 0; r < n_positions; ++r) positions[axis * n_positions + r] = n_past + r;
  stream.upload(memory_.root.positions, positions.data(), 3 * n_positions * sizeof(int32_t));
  send(depth);
}

void ModelDrafter::send(int depth) {
  sent_depth_ = depth;
  Stream& stream = timeline_.stream();
  stream.replay(recordings_[depth], [&] {
    DraftWorkspace workspace = timeline_.engine().buffers().draft;
    workspace.ids = memory_.ids;
    workspace.logprobs = memory_.logprobs;
    model().propose(memory_.root, depth, timeline_.state(), workspace, timeline_.engine().options().activations,
                    stream);
  });
}

void ModelDrafter::grow(int max_rows, int rows) {
  Draft& tree = *memory_.tree;
  run(GrowTree{.ids = memory_.ids,
               .logprobs = logprobs_,
               .root = memory_.root.token,
               .n_past = timeline_.state().n_past(),
               .n_rows = &tree.rows,
               .tokens = tree.tokens,
               .parents = tree.parents,
               .depths = tree.depths,
               .scores = tree.scores,
               .ancestors = tree.ancestors,
               .positions = memory_.positions,
               .sequences = 1,
               .depth = std::min(sent_depth_, max_rows - 1),
               .k = model().n_candidates(),
               .max_rows = max_rows,
               .rows = rows},
      timeline_.stream());
}

Draft ModelDrafter::tree(int max_rows) {
  const std::lock_guard lock(timeline_.turn());
  Draft tree;
  grow(max_rows, 1);
  timeline_.stream().download(&tree, memory_.tree, sizeof tree);
  return tree;
}

bool ModelDrafter::fits_ahead() {
  const int n_longest = timeline_.state().n_tokens() + sent_depth_ + 1;
  const int end = n_longest + model().max_depth() + 1;
  return end <= timeline_.context() && timeline_.state().reserve(end);
}

AcceptPath ModelDrafter::accept_path() {
  AppendNumbers& numbers = *timeline_.state().numbers();
  return {.n_before = memory_.n_before,
          .n_past = &numbers.n_past,
          .key_buffer = &numbers.key_buffer,
          .n_accepted = &numbers.n_accepted,
          .accepted = numbers.accepted,
          .root = memory_.root.token,
          .positions = memory_.root.positions,
          .n_positions = model().max_depth() + 1};
}

void ModelDrafter::send_moves() {
  SequenceState& state = timeline_.state();
  const int n_target = timeline_.engine().model().info().n_layers;
  state.send_moves(n_target, static_cast<int>(state.layers().size()), memory_.n_before);
}

}  // namespace lb
