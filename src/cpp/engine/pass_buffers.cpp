#include "engine/pass_buffers.h"

#include <algorithm>

namespace lb {

int PassBuffers::step_rows(const EngineOptions& options) { return std::clamp(options.prefill_chunk, 1, kStepRows); }

size_t PassBuffers::planned_bytes(const Models& models, const EngineOptions& options, const NetworkPart& part,
                                  int max_rows) {
  Carver carver;
  carve_io(nullptr, carver, models, options, part, max_rows);
  return carver.used() + (part.has_target ? models.target->workspace_bytes(max_rows) : 0) +
         (models.draft && part.has_draft ? models.draft->workspace_bytes(max_rows) : 0);
}

void PassBuffers::carve_io(PassBuffers* self, Carver& carver, const Models& models, const EngineOptions& options,
                           const NetworkPart& part, int max_rows) {
  int32_t* tokens = carver.take<int32_t>(max_rows);
  int32_t* positions = carver.take<int32_t>(3 * static_cast<size_t>(max_rows));
  const bool has_images = models.target->info().images_are_whole;
  int32_t* last_seen = has_images ? carver.take<int32_t>(max_rows) : nullptr;
  const bool is_of_steps = max_rows == step_rows(options);
  int32_t* parents = carver.take<int32_t>(is_of_steps ? kMaxTree : 0);
  uint64_t* ancestors = carver.take<uint64_t>(is_of_steps ? kMaxTree : 0);
  PassInputs* pass = carver.take<PassInputs>(is_of_steps ? 1 : 0);
  const bool has_logits = is_of_steps && part.is_last() && part.has_target;
  float* logits = carver.take<float>(has_logits ? static_cast<size_t>(kLogitRows) * models.target->info().vocab : 0);
  int32_t* draft_n_past = models.draft ? carver.take<int32_t>(1) : nullptr;
  float* taps = nullptr;  // to hand over
  if (models.hands_over_taps(part))
    taps = carver.take<float>(static_cast<size_t>(max_rows), static_cast<size_t>(models.draft->tap_width()));
  std::optional<SparseBlocks> sparse;
  if (options.sparse_prefill > 0 && part.has_target && max_rows == std::max(options.prefill_chunk, 1)) {
    const auto& [n_heads, n_kv_heads, head_dim, key_tail] = models.target->attention();
    sparse =
        SparseBlocks::carve(carver, n_heads, n_kv_heads, head_dim, options.context, max_rows, options.sparse_prefill);
    sparse->no_past = carver.take<int32_t>(1);  // reserved memory is zero
  }
  if (self == nullptr) return;
  self->draft_n_past = draft_n_past;
  self->draft.taps = taps;
  self->sparse = sparse;
  self->tokens = tokens;
  self->positions = positions;
  self->last_seen = last_seen;
  self->parents = parents;
  self->ancestors = ancestors;
  self->logits = logits;
  self->pass = pass;
}

PassBuffers::PassBuffers(const Models& models, const EngineOptions& options, const NetworkPart& part, int max_rows,
                         Stream& stream, EngineTurn& turn)
    : turn(turn),
      stream(&stream),
      max_rows(max_rows),
      memory(stream.reserve(planned_bytes(models, options, part, max_rows))) {
  Carver carver(*memory);
  carve_io(this, carver, models, options, part, max_rows);
  if (models.draft && part.has_draft) {
    draft = models.draft->workspace(carver, max_rows);
    carver.take<std::byte>(models.draft->workspace_bytes(max_rows));  // workspace() carved from a copy
  }
  if (part.has_target) workspace = models.target->workspace(carver, max_rows);
}

}  // namespace lb
