#include "engine/tree_memory.h"

namespace lb {

TreeMemory::TreeMemory(Carver& carver, const Model* target, const DraftModel* draft, const EngineOptions& options) {
  const size_t rows = options.tree_rows();
  if (rows == 0) return;
  if (target != nullptr) logits = carver.take<float>(rows * target->info().vocab);
  tree = carver.take<Draft>(1);
  positions = carver.take<int32_t>(3 * size_t{kMaxTree});
  if (draft == nullptr) return;
  const size_t candidates = size_t(draft->max_depth()) * draft->n_candidates();
  ids = carver.take<int32_t>(candidates);
  logprobs = carver.take<float>(candidates);
  replay_logprobs = carver.take<float>(candidates);
  n_before = carver.take<int32_t>(1);
  root.token = carver.take<int32_t>(1);
  root.positions = carver.take<int32_t>(3 * (draft->max_depth() + size_t{1}));
  root.last_slot = carver.take<int32_t>(1);
}

size_t TreeMemory::planned_bytes(const Model* target, const DraftModel* draft, const EngineOptions& options) {
  Carver counter;
  TreeMemory(counter, target, draft, options);
  return counter.used();
}

}  // namespace lb
