// Searches for the largest context: subtracts the weights first, then everything that grows with the context.
#include "engine/plan_fit.h"

#include <algorithm>
#include <iomanip>
#include <optional>
#include <sstream>

#include "base/error.h"
#include "base/system.h"

namespace lb {
namespace {

std::string with_unit(double value, const char* unit) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(1) << value << unit;
  return text.str();
}
std::string kib(size_t bytes) { return with_unit(bytes / 1024.0, " KiB"); }

// Describes a layer whose heads a KV type does not support; nothing if there is none.
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

// The model's maximum, else the largest multiple of a page that fits; 0: none fits. The bytes are almost a linear
// function of the context, so a line through both ends of the range finds the context in a third of a bisection's
// steps.
int largest_context(const ContextDemand& demand, const KvTypes& kv, size_t budget) {
  constexpr int kLines = 6;  // then bisection
  const auto needed = [&](int context) { return demand.needed_bytes(context, kv); };
  const int max_context = demand.models.target->info().max_context;
  size_t bytes_not = needed(max_context);
  if (bytes_not <= budget) return max_context;
  int fits = 1, does_not = n_pages(max_context);  // pages
  if (does_not == fits) return 0;
  size_t bytes_fits = needed(kPageTokens);
  if (bytes_fits > budget) return 0;
  for (int step = 0; does_not - fits > 1; ++step) {
    const double on_line = double(budget - bytes_fits) / double(bytes_not - bytes_fits) * (does_not - fits);
    const int pages = step < kLines ? std::clamp(fits + int(on_line), fits + 1, does_not - 1) : (fits + does_not) / 2;
    const size_t bytes = needed(pages * kPageTokens);
    if (bytes <= budget) {
      fits = pages;
      bytes_fits = bytes;
    } else {
      does_not = pages;
      bytes_not = bytes;
    }
  }
  return fits * kPageTokens;
}

// The largest context of every KV type that the heads support.
std::vector<KvFit> kv_fits(const ContextDemand& demand, size_t budget) {
  std::vector<KvFit> fits;
  for (int i = 0; i < kKvTypeCount; ++i) {
    const KvTypes kv{KvType(i), KvType(i)};
    if (problem_of_heads(demand.models, kv)) continue;
    fits.push_back({kv, demand.token_bytes(kv), largest_context(demand, kv, budget)});
  }
  std::ranges::stable_sort(fits, std::greater(), &KvFit::token_bytes);
  return fits;
}

// The smaller KV types and their contexts as lines of a table; empty: no smaller type fits any context.
std::string smaller_types(const ContextDemand& demand, const KvTypes& kv, size_t budget) {
  const size_t token_bytes = demand.token_bytes(kv);
  std::ostringstream text;
  for (const KvFit& fit : kv_fits(demand, budget)) {
    if (fit.token_bytes >= token_bytes || fit.largest_context == 0) continue;
    if (text.tellp() == 0) text << "\n  kv     KiB a token  largest context";
    text << "\n  " << std::left << std::setw(6) << to_string(fit.kv) << std::right << std::fixed << std::setprecision(2)
         << std::setw(12) << fit.token_bytes / 1024.0 << std::setw(17) << fit.largest_context;
  }
  return text.str();
}

std::string kv_detail(const StateSizes::Kv& sizes, const KvTypes& kv, int kv_tokens) {
  return cat(kv_tokens, " tokens, ", to_string(kv), ", ", kib(sizes.token_bytes), " a token");
}

// Device memory available to a plan.
struct Budget {
  size_t reserved, available;  // left to the driver; the rest of the free memory
  size_t fixed;                // bytes of the plan that are the same at any context

  Budget(const ContextDemand& demand, size_t memory_limit)
      : reserved(demand.sizes.reserved_bytes()), fixed(demand.weights.total() + demand.fixed_bytes) {
    const size_t free = demand.sizes.free_bytes(), usable = memory_limit > 0 ? std::min(memory_limit, free) : free;
    available = usable > reserved ? usable - reserved : 0;
  }
  size_t left() const { return available > fixed ? available - fixed : 0; }
  // "24.0 MiB of memory of cuda:0 are available, and 48.0 MiB of free memory would do"
  std::string text(const ContextDemand& demand, size_t needed) const {
    return cat(mib(available), " of ", demand.sizes.memory_name(), " are available, and ",
               mib(fixed + needed + reserved), " of free memory would suffice");
  }
};

void check_smallest(const ContextDemand& demand, const Budget& budget, const KvTypes& kv, int fits) {
  if (fits > 0) return;
  const Models& models = demand.models;
  const size_t smallest = demand.needed_bytes(std::min(kPageTokens, models.target->info().max_context), kv);
  fail(ErrorCode::kMemory, "the weights take ", mib(demand.weights.total()),
       demand.weights.draft > 0 ? cat(", ", mib(demand.weights.draft), " of which are the draft model's,") : "",
       " and the smallest session ", mib(smallest), "; ", budget.text(demand, smallest),
       ". Use a smaller model or quantisation", models.draft ? ", draft without a draft model" : "", ", or free memory",
       smaller_types(demand, kv, budget.left()));
}

void check_context(const ContextDemand& demand, const Budget& budget, const ModelOptions& options, int fits) {
  const int max_context = demand.models.target->info().max_context;
  LB_CHECK(options.context <= max_context, kInvalid, "context = ", options.context, " exceeds the model's maximum of ",
           max_context, " tokens");
  const size_t needed = demand.needed_bytes(options.context, options.kv);
  LB_CHECK(needed <= budget.left(), kMemory, "context = ", options.context, " needs ", mib(needed), " in addition to ",
           mib(demand.weights.total()), " of weights; ", budget.text(demand, needed), ". ",
           fits > 0 ? cat("context = ", fits, " would fit") : std::string("No context fits"),
           "; a smaller prefill_chunk or a smaller kv type also saves memory",
           smaller_types(demand, options.kv, budget.left()));
}

}  // namespace

std::string mib(size_t bytes) { return with_unit(bytes / 1048576.0, " MiB"); }

void check_model_options(const ModelOptions& options) {
  LB_CHECK(options.context >= 0, kInvalid, "context must be positive, got ", options.context);
  LB_CHECK(options.prefill_chunk >= 0 && options.prefill_chunk <= 8192, kInvalid,
           "prefill_chunk must be between 1 and 8192, got ", options.prefill_chunk);
}

void resolve_model_options(ModelOptions& options, const DeviceSizes& sizes) {
  if (options.threads == 0) options.threads = usable_cores();
  LB_CHECK(options.threads >= 1 && options.threads <= 1024, kInvalid, "threads must be between 1 and 1024, got ",
           options.threads);
  if (options.prefill_chunk == 0) options.prefill_chunk = sizes.prefill_chunk();
}

namespace {

ExpertPlan experts_of(const Models& models) {
  Network& target = *models.target;
  const ExpertProducts& products = target.expert_products();
  if (products.n == 0) return {};
  const int slots = target.expert_slots();
  ExpertPlan plan{.n = products.n,
                  .used = products.used,
                  .slots = slots > 0 ? slots : products.n,
                  .layers = models.target->info().n_layers,
                  .slot_bytes = target.expert_bytes()};
  if (slots > 0) plan.host_bytes = target.all_expert_bytes() + (models.draft ? models.draft->all_expert_bytes() : 0);
  return plan;
}

}  // namespace

WeightSizes::WeightSizes(const Models& models, const DeviceSizes& sizes, size_t file_bytes, const NetworkPart& part)
    : target(sizes.weight_bytes(*models.target, part)),
      draft(models.draft && part.has_draft ? sizes.weight_bytes(*models.draft, {}) : 0),
      copied(models.target->copied_bytes() + (models.draft ? models.draft->copied_bytes() : 0)),
      mapped(sizes.maps_weights() ? file_bytes : 0),
      is_copied_to_device(!sizes.maps_weights()),
      is_slice(models.target->is_slice()),
      experts(experts_of(models)),
      part(part),
      n_layers(models.target->info().n_layers) {}

std::vector<PlanEntry> WeightSizes::device_entries() const {
  if (!is_copied_to_device) return {};
  const std::string layers =
      is_slice           ? "a part of every layer: "
      : !part.has_target ? "embedding and head, which drafts need: "
      : part.n == 1      ? ""
                         : cat("layers ", part.layers.first, " to ", std::min(part.layers.end, n_layers) - 1, ": ");
  const size_t slots = experts.host_bytes > 0 ? experts.slots * experts.slot_bytes : 0;
  return {{"weights", target - slots, layers + "codes and scales, in the layout of the kernels"},
          {"experts", slots, cat(experts.slots, " of the ", experts.n, " experts of each layer")},
          {"draft weights", draft, "codes and scales of the draft model"}};
}

std::vector<PlanEntry> WeightSizes::host_entries() const {
  if (is_copied_to_device) return {};
  return {{"copied weights", copied, "weights that are stored in another order than in the file"},
          {"vectors", target + draft - copied, "norms and other small weights as F32"}};
}

StateSizes::StateSizes(std::span<const LayerShape> shapes, const StateOptions& options, int n_target, int pages,
                       int window_pages, LayerRange range)
    : window_tokens(window_pages * kPageTokens) {
  table = ShardState::planned_bytes(shapes, options, range);
  for (int i = 0; i < static_cast<int>(shapes.size()); ++i) {
    if (!range.has(i)) continue;
    const size_t bytes = ShardState::layer_bytes(shapes[i]), unfolded = pending_bytes(shapes[i]);
    const auto* shape = std::get_if<KvShape>(&shapes[i]);
    table -= bytes;
    if (shape == nullptr) {
      recurrent += bytes - unfolded;
      pending += unfolded;
    } else if (shape->window > 0) {
      windows += PageMemory::layer_bytes(shapes, i, KvRows::kWindow, options, window_pages);
      ++n_windows;
    } else {
      Kv& kv = i >= n_target ? draft : target;
      kv.bytes += PageMemory::layer_bytes(shapes, i, KvRows::kAll, options, pages);
      kv.token_bytes += page_bytes(*shape, options) / kPageTokens;
    }
  }
}

std::vector<PlanEntry> StateSizes::entries(const KvTypes& kv, int kv_tokens) const {
  return {
      {"KV cache", target.bytes, kv_detail(target, kv, kv_tokens)},
      {"draft KV cache", draft.bytes, kv_detail(draft, kv, kv_tokens)},
      {"KV windows", windows, cat(n_windows, " layers keep the newest tokens, ", window_tokens, " of all sessions")},
      {"page table", table, "page numbers, and the indices of an append", true},
      {"recurrent state", recurrent, "after the committed tokens, F32", true},
      {"pending rows", pending, cat("up to ", kMaxTree, " appended rows, not yet folded, F32"), true},
  };
}

FittedContext fit_context(const ContextDemand& demand, ModelOptions& options) {
  if (const auto problem = problem_of_heads(demand.models, options.kv))
    fail(ErrorCode::kUnsupported, "kv = ", to_string(options.kv), ": ", *problem,
         ". Use kv = f16, bf16 or f32, which take heads of any size");
  const Budget budget(demand, options.memory_limit);
  const int fits = largest_context(demand, options.kv, budget.left());
  if (options.context == 0) {
    check_smallest(demand, budget, options.kv, fits);
    options.context = demand.max_tokens > 0 ? std::min(fits, demand.max_tokens) : fits;
  }
  check_context(demand, budget, options, fits);
  options.prefill_chunk = std::min(options.prefill_chunk, options.context);
  return {budget.available, budget.left(), fits};
}

bool context_fits(const ContextDemand& demand, const ModelOptions& options) {
  return demand.needed_bytes(options.context, options.kv) <= Budget(demand, options.memory_limit).left();
}

MemoryPlan start_plan(const ContextDemand& demand, const FittedContext& fitted, const ModelOptions& options) {
  const Model& model = *demand.models.target;
  return {.device = demand.sizes.name(),
          .mapped_bytes = demand.weights.mapped,
          .available_bytes = fitted.available,
          .bytes_per_token = model.bytes_per_token(),
          .n_layers = model.info().n_layers,
          .experts = demand.weights.experts,
          .context = options.context,
          .max_context = model.info().max_context,
          .largest_context = fitted.largest_context,
          .kv_fits = kv_fits(demand, fitted.budget)};
}

size_t MemoryPlan::total_bytes() const {
  size_t bytes = 0;
  for (const PlanEntry& entry : entries) bytes += entry.bytes;
  return bytes;
}

size_t MemoryPlan::session_bytes() const {
  size_t bytes = 0;
  for (const PlanEntry& entry : entries) bytes += entry.per_session ? entry.bytes : 0;
  return bytes;
}

}  // namespace lb
