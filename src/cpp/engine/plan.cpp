// Memory planning: fixed parts once, then the state as a function of the context.
#include "engine/plan.h"

#include <algorithm>
#include <iomanip>

#include "base/error.h"
#include "ops/attention.h"
#include "ops/delta_net.h"
#include "ops/linear.h"

namespace lb {
namespace {

std::string mib(size_t bytes) { return cat(std::fixed, std::setprecision(1), bytes / 1048576.0, " MiB"); }

size_t state_bytes(const Model& model, const EngineOptions& options, int context) {
  return SequenceState::planned_bytes(model.layer_shapes(), {context, options.kv, options.kv});
}

size_t recurrent_bytes(const Model& model) {
  size_t bytes = 0;
  for (const LayerShape& shape : model.layer_shapes())
    if (std::holds_alternative<RecurrentShape>(shape))
      bytes += SequenceState::planned_bytes(std::span(&shape, 1), {0, DType::kF16, DType::kF16});
  return bytes;
}

EngineOptions with_context(EngineOptions options, int context) {
  options.context = context;
  return options;
}

// Everything but the weights, for one context length.
size_t private_bytes(const Model& model, const EngineOptions& options, int context) {
  return state_bytes(model, options, context) +
         Stream::planned_bytes(stream_options(model, with_context(options, context))) +
         Executor::planned_bytes(model, std::min(options.prefill_chunk, context)) + model.vector_bytes();
}

// The model's maximum, or the largest multiple of a page that fits; 0 when none does.
int largest_context(const Model& model, const EngineOptions& options, size_t budget) {
  if (private_bytes(model, options, model.info().max_context) <= budget) return model.info().max_context;
  int low = 0, high = model.info().max_context / kPageTokens;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (private_bytes(model, options, middle * kPageTokens) <= budget) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low * kPageTokens;
}

}  // namespace

StreamOptions stream_options(const Model& model, const EngineOptions& options) {
  const ModelInfo& info = model.info();
  const int rows = std::max(options.prefill_chunk, kMaxTree), widest = model.widest_input();
  StreamOptions stream{.n_threads = options.n_threads, .isa = options.isa};
  stream.shared_scratch_bytes = std::max(linear_shared_scratch(rows, widest),
                                         attention_shared_scratch(rows, info.n_heads, info.head_dim, options.context));
  stream.thread_scratch_bytes =
      std::max(linear_thread_scratch(widest), attention_thread_scratch(info.head_dim, info.n_heads, info.n_kv_heads));
  for (const LayerShape& shape : model.layer_shapes())
    if (const auto* r = std::get_if<RecurrentShape>(&shape))
      stream.thread_scratch_bytes = std::max(stream.thread_scratch_bytes, delta_thread_scratch(r->dk, r->dv));
  return stream;
}

MemoryPlan make_plan(const Model& model, size_t mapped_bytes, size_t available_bytes, EngineOptions& options) {
  const int max_context = model.info().max_context;
  const size_t budget = available_bytes > mapped_bytes ? available_bytes - mapped_bytes : 0;
  const int fits = largest_context(model, options, budget);
  if (options.context == 0) {
    LB_CHECK(fits > 0, kMemory, "the weights take ", mib(mapped_bytes), " and the smallest session ",
             mib(private_bytes(model, options, kPageTokens)), "; ", mib(available_bytes),
             " of memory are available. Use a smaller model or quantisation, or free memory");
    options.context = fits;
  }
  LB_CHECK(options.context <= max_context, kInvalid, "context = ", options.context, " is more than the ", max_context,
           " tokens the model was made for");
  const size_t needed = private_bytes(model, options, options.context);
  LB_CHECK(needed <= budget, kMemory, "context = ", options.context, " needs ", mib(needed), " besides ",
           mib(mapped_bytes), " of weights; ", mib(available_bytes), " of memory are available. ",
           fits > 0 ? cat("context = ", fits, " would fit") : std::string("No context fits"),
           "; a smaller prefill_chunk or a 16-bit kv type also saves memory");
  options.prefill_chunk = std::min(options.prefill_chunk, options.context);

  MemoryPlan plan;
  plan.mapped_bytes = mapped_bytes;
  plan.available_bytes = available_bytes;
  plan.context = options.context;
  plan.max_context = max_context;
  const size_t recurrent = recurrent_bytes(model);
  const StreamOptions stream = stream_options(model, options);
  plan.entries = {
      {"KV cache", state_bytes(model, options, options.context) - recurrent,
       cat(options.context, " tokens, ", name(options.kv))},
      {"recurrent state", recurrent, "state, convolution history and pending rows, F32"},
      {"activations", Executor::planned_bytes(model, options.prefill_chunk),
       cat(options.prefill_chunk, " rows and ", Executor::kLogitRows, " rows of logits")},
      {"kernel scratch", Stream::planned_bytes(stream), cat(options.n_threads, " threads, ", name(options.isa))},
      {"vectors", model.vector_bytes(), "norms and other small weights as F32"},
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
