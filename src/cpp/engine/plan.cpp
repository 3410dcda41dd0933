// The weights and the decode step first, then everything that grows with the context.
#include "engine/plan.h"

#include <algorithm>
#include <functional>
#include <iomanip>
#include <limits>
#include <optional>
#include <sstream>

#include "base/error.h"
#include "engine/prompt_scorer.h"
#include "engine/step_rows.h"
#include "engine/tree_memory.h"

namespace lb {
namespace {

std::string with_unit(double value, const char* unit) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(1) << value << unit;
  return text.str();
}
std::string mib(size_t bytes) { return with_unit(bytes / 1048576.0, " MiB"); }
std::string kib(size_t bytes) { return with_unit(bytes / 1024.0, " KiB"); }

std::string activations_detail(const EngineOptions& options) {
  const int steps = Executor::step_rows(options);
  return options.prefill_chunk > steps ? cat(options.prefill_chunk, " rows of a prompt, ", steps, " beside them")
                                       : cat(options.prefill_chunk, " rows");
}

// Layers of a session's state, or of a scorer's.
std::vector<LayerShape> state_shapes(const Models& models, const EngineOptions& options) {
  return options.score_rows > 0 ? PromptScorer::state_shapes(*models.target) : models.layer_shapes();
}

// Memory of a sequence besides its pages.
size_t state_bytes(const Models& models, const EngineOptions& options) {
  return SequenceState::planned_bytes(state_shapes(models, options), state_options(options));
}

// Pages of the KV cache: as options say, and at least a context.
int kv_pages(const EngineOptions& options) { return n_pages(std::max(options.kv_tokens, options.context)); }

size_t kv_bytes(const Models& models, const EngineOptions& options, int pages) {
  return PagePool::planned_bytes(state_shapes(models, options), state_options(options), pages);
}

// Memory of a session besides its state: of the token loop and of trees. A scorer has neither.
size_t loop_bytes(const Models& models, const DeviceSizes& sizes, const EngineOptions& options) {
  return options.score_rows > 0 ? 0 : sizes.loop_bytes(*models.target, options);
}

// Keys and values of the layers that keep all rows.
struct KvSizes {
  size_t bytes = 0, token_bytes = 0;

  std::string detail(const EngineOptions& options) const {
    return cat(kv_pages(options) * kPageTokens, " tokens, ", to_string(options.kv), ", ", kib(token_bytes), " a token");
  }
};

// The memory of sequences by what it is for: the KV cache, and what each sequence has of its own.
struct StateSizes {
  KvSizes target, draft;
  size_t rings = 0, recurrent = 0, pending = 0, table = 0;
  int n_rings = 0, ring_rows = 0;  // layers that keep a ring, and the rows of the longest
};

StateSizes state_sizes(const Models& models, const EngineOptions& options) {
  const std::vector<LayerShape> shapes = state_shapes(models, options);
  const StateOptions state = state_options(options);
  const bool has_folding = any_folds(shapes);
  StateSizes sizes;
  sizes.table = state_bytes(models, options);
  for (int i = 0; i < static_cast<int>(shapes.size()); ++i) {
    const size_t bytes = SequenceState::layer_bytes(shapes, i, state), pending = pending_bytes(shapes[i]);
    const auto* shape = std::get_if<KvShape>(&shapes[i]);
    sizes.table -= bytes;
    if (shape == nullptr) {
      sizes.recurrent += bytes - pending;
      sizes.pending += pending;
    } else if (const int ring = ring_pages(*shape, state, has_folding); ring > 0) {
      sizes.rings += bytes;
      ++sizes.n_rings;
      sizes.ring_rows = std::max(sizes.ring_rows, ring * kPageTokens);
    } else {
      KvSizes& kv = i >= models.target->info().n_layers ? sizes.draft : sizes.target;
      kv.bytes += PagePool::layer_bytes(shapes, i, state, kv_pages(options));
      kv.token_bytes += page_bytes(*shape, state) / kPageTokens;
    }
  }
  return sizes;
}

size_t tree_bytes(const Models& models, const EngineOptions& options) {
  return TreeMemory::planned_bytes(*models.target, models.draft.get(), options);
}

EngineOptions with_context(EngineOptions options, int context) {
  options.context = context;
  options.prefill_chunk = std::min(options.prefill_chunk, context);
  return options;
}

// A layer whose heads a type cannot hold, or nothing.
std::optional<std::string> problem_of_heads(const Models& models, const KvTypes& kv) {
  const std::vector<LayerShape> shapes = models.layer_shapes();
  for (size_t i = 0; i < shapes.size(); ++i)
    if (const auto* shape = std::get_if<KvShape>(&shapes[i]))
      for (KvType type : {kv.k, kv.v})
        if (!has_whole_groups(type, shape->head_dim))
          return cat(kv_name(type), " stores groups of 32 values, and ",
                     int(i) < models.target->info().n_layers ? "the model" : "the draft model", " has heads of ",
                     shape->head_dim);
  return std::nullopt;
}

// Memory of a session besides the KV cache.
size_t session_bytes(const Models& models, const DeviceSizes& sizes, const EngineOptions& options) {
  return state_bytes(models, options) + tree_bytes(models, options) +
         step_row_bytes(models.draft.get(), sizes, *models.target, options) + loop_bytes(models, sizes, options) +
         PromptScorer::planned_bytes(*models.target, options);
}

// The buffers of the executor, which all sessions share.
size_t executor_bytes(const Models& models, const DeviceSizes& sizes, const EngineOptions& options) {
  return sizes.scratch_bytes(models.networks(), options) + Engine::executor_bytes(models, options);
}

// A session, the KV cache and the executor, at this context.
size_t needed_bytes(const Models& models, const DeviceSizes& sizes, const EngineOptions& any, int context) {
  const EngineOptions options = with_context(any, context);
  return session_bytes(models, sizes, options) + kv_bytes(models, options, kv_pages(options)) +
         executor_bytes(models, sizes, options);
}

// Pages of the KV cache where options leave them open: a context for each session, or the most that fits beside them.
int fitting_kv_pages(const Models& models, const DeviceSizes& sizes, const EngineOptions& options, size_t budget) {
  const int least = n_pages(options.context);
  const size_t others =
      options.sessions * session_bytes(models, sizes, options) + executor_bytes(models, sizes, options);
  int64_t low = least, high = int64_t{least} * options.sessions;
  while (low < high) {
    const int64_t middle = (low + high + 1) / 2;
    const bool fits = middle * kPageTokens <= std::numeric_limits<int>::max() &&
                      others + kv_bytes(models, options, static_cast<int>(middle)) <= budget;
    fits ? low = middle : high = middle - 1;
  }
  return static_cast<int>(low);
}

// The model's maximum, else the largest multiple of a page that fits; 0: none fits.
int largest_context(const Models& models, const DeviceSizes& sizes, const EngineOptions& options, size_t budget) {
  if (needed_bytes(models, sizes, options, models.target->info().max_context) <= budget)
    return models.target->info().max_context;
  int low = 0, high = models.target->info().max_context / kPageTokens;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (needed_bytes(models, sizes, options, middle * kPageTokens) <= budget) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low * kPageTokens;
}

// The context of every type that the heads can have.
std::vector<KvFit> kv_fits(const Models& models, const DeviceSizes& sizes, EngineOptions options, size_t budget) {
  std::vector<KvFit> fits;
  for (int i = 0; i < kKvTypeCount; ++i) {
    options.kv = {KvType(i), KvType(i)};
    if (problem_of_heads(models, options.kv)) continue;
    const StateSizes state = state_sizes(models, with_context(options, models.target->info().max_context));
    fits.push_back({options.kv, state.target.token_bytes + state.draft.token_bytes,
                    largest_context(models, sizes, options, budget)});
  }
  std::ranges::stable_sort(fits, std::greater(), &KvFit::token_bytes);
  return fits;
}

// The smaller types and their contexts as lines of a table; empty: no smaller one fits any context.
std::string smaller_types(const std::vector<KvFit>& fits, size_t token_bytes) {
  std::ostringstream text;
  for (const KvFit& fit : fits) {
    if (fit.token_bytes >= token_bytes || fit.largest_context == 0) continue;
    if (text.tellp() == 0) text << "\n  kv     KiB a token  largest context";
    text << "\n  " << std::left << std::setw(6) << to_string(fit.kv) << std::right << std::fixed << std::setprecision(2)
         << std::setw(12) << fit.token_bytes / 1024.0 << std::setw(17) << fit.largest_context;
  }
  return text.str();
}

}  // namespace

size_t step_row_bytes(const DraftModel* draft, const DeviceSizes& sizes, const Model& model,
                      const EngineOptions& options) {
  return draft == nullptr || sizes.loop_bytes(model, options) == 0 ? 0 : StepRows::planned_bytes(*draft);
}

StateOptions state_options(const EngineOptions& options) {
  return {options.context, options.kv.k, options.kv.v, options.prefill_chunk};
}

MemoryPlan make_plan(const Models& models, const DeviceSizes& sizes, size_t file_bytes, EngineOptions& options) {
  Model& model = *models.target;
  if (const auto problem = problem_of_heads(models, options.kv))
    fail(ErrorCode::kUnsupported, "kv = ", to_string(options.kv), ": ", *problem,
         ". Use kv = f16, bf16 or f32, which take heads of any size");
  const int max_context = model.info().max_context;
  const size_t free =
      options.memory_limit > 0 ? std::min(options.memory_limit, sizes.free_bytes()) : sizes.free_bytes();
  const size_t reserved = sizes.reserved_bytes(), available = free > reserved ? free - reserved : 0;
  const size_t target = sizes.weight_bytes(model), draft = models.draft ? sizes.weight_bytes(*models.draft) : 0;
  const size_t copied = target + draft;
  const size_t expanded =
      sizes.maps_weights() ? model.expanded_bytes() + (models.draft ? models.draft->expanded_bytes() : 0) : 0;
  const size_t mapped = sizes.maps_weights() ? file_bytes : 0, weights = mapped + copied;
  const size_t step = options.score_rows > 0 ? 0 : sizes.step_bytes(models, options), fixed = weights + step;
  const size_t budget = available > fixed ? available - fixed : 0;
  const int fits = largest_context(models, sizes, options, budget);
  const std::vector<KvFit> types = kv_fits(models, sizes, options, budget);
  const std::string memory = sizes.memory_name();
  const StateSizes asked = state_sizes(models, with_context(options, max_context));
  const std::string smaller = smaller_types(types, asked.target.token_bytes + asked.draft.token_bytes);
  if (options.context == 0) {
    const size_t smallest = needed_bytes(models, sizes, options, std::min(kPageTokens, max_context));
    LB_CHECK(fits > 0, kMemory, "the weights take ", mib(weights),
             models.draft ? cat(", ", mib(models.draft->weight_bytes()), " of them the draft model's,") : "",
             " and the smallest session ", mib(smallest), "; ", mib(available), " of ", memory, " are available, and ",
             mib(fixed + smallest + reserved), " of free memory would do. Use a smaller model or quantisation",
             models.draft ? ", draft without a draft model" : "", ", or free memory", smaller);
    options.context = options.kv_tokens > 0 ? std::min(fits, options.kv_tokens) : fits;
  }
  LB_CHECK(options.context <= max_context, kInvalid, "context = ", options.context, " exceeds the model's maximum of ",
           max_context, " tokens");
  const size_t needed = needed_bytes(models, sizes, options, options.context);
  LB_CHECK(needed <= budget, kMemory, "context = ", options.context, " needs ", mib(needed), " in addition to ",
           mib(weights), " of weights; ", mib(available), " of ", memory, " are available, and ",
           mib(fixed + needed + reserved), " of free memory would do. ",
           fits > 0 ? cat("context = ", fits, " would fit") : std::string("No context fits"),
           "; a smaller prefill_chunk or a smaller kv type also saves memory", smaller);
  options = with_context(options, options.context);
  const int pages = options.kv_tokens > 0 || options.score_rows > 0 ? kv_pages(options)
                                                                    : fitting_kv_pages(models, sizes, options, budget);
  options.kv_tokens = pages * kPageTokens;

  MemoryPlan plan;
  plan.device = sizes.name();
  plan.mapped_bytes = mapped;
  plan.available_bytes = available;
  plan.context = options.context;
  plan.kv_tokens = options.kv_tokens;
  plan.max_context = max_context;
  plan.largest_context = fits;
  plan.kv_fits = types;
  const StateSizes state = state_sizes(models, options);
  const size_t logits = sizeof(float) * Executor::kLogitRows * model.info().vocab;
  plan.entries = {
      {"weights", sizes.maps_weights() ? 0 : target, "codes and scales as the kernels read them"},
      {"draft weights", sizes.maps_weights() ? 0 : draft, "of the draft model, likewise"},
      {"KV cache", state.target.bytes, state.target.detail(options)},
      {"draft KV cache", state.draft.bytes, state.draft.detail(options)},
      {"KV rings", state.rings, cat(state.n_rings, " of the layers keep ", state.ring_rows, " rows"), true},
      {"page table", state.table, "and the numbers of an append", true},
      {"recurrent state", state.recurrent, "of the committed tokens, F32", true},
      {"pending rows", state.pending, cat(kMaxTree, " rows of a tree or of a prompt, not yet folded, F32"), true},
      {"activations", Engine::executor_bytes(models, options) - logits, activations_detail(options)},
      {"logits", logits, cat(Executor::kLogitRows, " rows")},
      {"tree logits", tree_bytes(models, options), cat("trees of ", options.tree_rows(), " rows"), true},
      {"draft rows", step_row_bytes(models.draft.get(), sizes, model, options),
       cat("tapped rows of ", StepRing::kRows, " plain steps"), true},
      {"kernel scratch", sizes.scratch_bytes(models.networks(), options), sizes.scratch_detail(options)},
      {"sampler", loop_bytes(models, sizes, options), "logits, penalties and history", true},
      {"prompt", PromptScorer::planned_bytes(model, options),
       cat("rows of ", options.context, " tokens between two layers, scores of ", options.score_rows, " rows, F32",
           options.sparse_alpha() > 0 ? "; selected key blocks" : ""),
       true},
      {"decode step", step, "tasks, weight offsets and mailboxes of the megakernel", true},
      {"expanded weights", expanded, "of FP8 and scaled NVFP4, as BF16"},
      {"vectors", sizes.maps_weights() ? copied - expanded : 0, "norms and other small weights as F32"},
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
