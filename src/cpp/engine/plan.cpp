// The weights and the decode step first, then everything that grows with the context.
#include "engine/plan.h"

#include <algorithm>
#include <iomanip>

#include "base/error.h"

namespace lb {
namespace {

std::string mib(size_t bytes) { return cat(std::fixed, std::setprecision(1), bytes / 1048576.0, " MiB"); }

size_t state_bytes(const Models& models, const EngineOptions& options, int context) {
  return SequenceState::planned_bytes(models.layer_shapes(), {context, options.kv, options.kv});
}

size_t recurrent_bytes(const Models& models) {
  std::vector<LayerShape> layers;
  for (const LayerShape& shape : models.layer_shapes())
    if (!std::holds_alternative<KvShape>(shape)) layers.push_back(shape);
  return SequenceState::planned_bytes(layers, {}) - SequenceState::planned_bytes({}, {});
}

EngineOptions with_context(EngineOptions options, int context) {
  options.context = context;
  return options;
}

// One session and the buffers of the executor, at this context.
size_t session_bytes(const Models& models, const Backend& backend, const EngineOptions& options, int context) {
  return state_bytes(models, options, context) + tree_logit_bytes(*models.target, options) +
         backend.loop_bytes(*models.target, with_context(options, context)) +
         backend.scratch_bytes(models.networks(), with_context(options, context)) +
         Executor::planned_bytes(models, std::min(options.prefill_chunk, context));
}

// The model's maximum, else the largest multiple of a page that fits; 0: none fits.
int largest_context(const Models& models, const Backend& backend, const EngineOptions& options, size_t budget) {
  if (session_bytes(models, backend, options, models.target->info().max_context) <= budget)
    return models.target->info().max_context;
  int low = 0, high = models.target->info().max_context / kPageTokens;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (session_bytes(models, backend, options, middle * kPageTokens) <= budget) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low * kPageTokens;
}

}  // namespace

size_t tree_logit_bytes(const Model& model, const EngineOptions& options) {
  return sizeof(float) * options.tree_rows() * model.info().vocab;
}

MemoryPlan make_plan(const Models& models, const Backend& backend, size_t file_bytes, EngineOptions& options) {
  Model& model = *models.target;
  const int max_context = model.info().max_context;
  const size_t available = backend.available_bytes(), target = backend.weight_bytes(model);
  const size_t draft = models.draft ? backend.weight_bytes(*models.draft) : 0, copied = target + draft;
  const size_t mapped = backend.maps_weights() ? file_bytes : 0, weights = mapped + copied;
  const size_t step = backend.step_bytes(model, options), fixed = weights + step;
  const size_t budget = available > fixed ? available - fixed : 0;
  const int fits = largest_context(models, backend, options, budget);
  const std::string memory = backend.memory_name();
  if (options.context == 0) {
    LB_CHECK(fits > 0, kMemory, "the weights take ", mib(weights), " and the smallest session ",
             mib(session_bytes(models, backend, options, kPageTokens)), "; ", mib(available), " of ", memory,
             " are available. Use a smaller model or quantisation, or free memory");
    options.context = fits;
  }
  LB_CHECK(options.context <= max_context, kInvalid, "context = ", options.context, " exceeds the model's maximum of ",
           max_context, " tokens");
  const size_t needed = session_bytes(models, backend, options, options.context);
  LB_CHECK(needed <= budget, kMemory, "context = ", options.context, " needs ", mib(needed), " in addition to ",
           mib(weights), " of weights; ", mib(available), " of ", memory, " are available. ",
           fits > 0 ? cat("context = ", fits, " would fit") : std::string("No context fits"),
           "; a smaller prefill_chunk or a 16-bit kv type also saves memory");
  options.prefill_chunk = std::min(options.prefill_chunk, options.context);

  MemoryPlan plan;
  plan.device = backend.name();
  plan.mapped_bytes = mapped;
  plan.available_bytes = available;
  plan.context = options.context;
  plan.max_context = max_context;
  const size_t recurrent = recurrent_bytes(models);
  plan.entries = {
      {"weights", backend.maps_weights() ? 0 : target, "codes and scales as the kernels read them"},
      {"draft weights", backend.maps_weights() ? 0 : draft, "of the draft model, likewise"},
      {"KV cache", state_bytes(models, options, options.context) - recurrent,
       cat(options.context, " tokens, ", name(options.kv)), true},
      {"recurrent state", recurrent, "state, convolution history and pending rows, F32", true},
      {"activations", Executor::planned_bytes(models, options.prefill_chunk),
       cat(options.prefill_chunk, " rows and ", Executor::kLogitRows, " rows of logits")},
      {"kernel scratch", backend.scratch_bytes(models.networks(), options), backend.scratch_detail(options)},
      {"sampler", backend.loop_bytes(model, options), "logits, penalties and history", true},
      {"draft logits", tree_logit_bytes(model, options), cat("trees of ", options.tree_rows(), " rows"), true},
      {"decode step", step, "tasks, weight offsets and mailboxes of the megakernel", true},
      {"vectors", backend.maps_weights() ? copied : 0, "norms and other small weights as F32"},
  };
  std::erase_if(plan.entries, [](const PlanEntry& entry) { return entry.bytes == 0; });
  return plan;
}

size_t MemoryPlan::total_bytes() const {
  size_t bytes = 0;
  for (const PlanEntry& entry : entries) bytes += entry.bytes;
  return bytes;
}

}  // namespace lb
