// The memory plan of an engine at a given context: shared memory and per-session memory.
#include "engine/plan.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "dispatch/device_link.h"
#include "dispatch/rank_group.h"
#include "engine/device_tower.h"
#include "engine/plan_fit.h"
#include "engine/shard.h"
#include "engine/step_rows.h"
#include "engine/token_loop.h"
#include "engine/tree_memory.h"

namespace lb {
namespace {

// The sizes of an engine with these options.
struct EngineSizes {
  const Models& models;
  const DeviceSizes& device;
  EngineOptions options;
  NetworkPart part;
  const ScratchBytes& scratch_bytes;

  EngineSizes at(int context, const KvTypes& kv) const {
    EngineSizes other = *this;
    other.options.context = context;
    other.options.prefill_chunk = std::min(options.prefill_chunk, context);
    other.options.kv = kv;
    return other;
  }
  // Pages of the KV cache: as the options say, but at least one context.
  int kv_pages() const { return n_pages(std::max(options.kv_tokens, options.context)); }
  // Pages of the layers with a window, if the other layers have `pages`.
  int window_pages(int pages) const {
    return Window(models.layer_shapes())
        .pool_pages(state_options(options), std::max(options.window_sessions, 1), part.n, pages);
  }
  size_t kv_bytes(int pages) const {
    const std::vector<LayerShape> shapes = models.layer_shapes();
    const StateOptions state = state_options(options);
    return PageMemory::planned_bytes(shapes, KvRows::kAll, state, pages, part.layers) +
           PageMemory::planned_bytes(shapes, KvRows::kWindow, state, window_pages(pages), part.layers);
  }
  StateSizes state() const {
    const int pages = kv_pages();
    return {models.layer_shapes(),
            state_options(options),
            models.target->info().n_layers,
            pages,
            window_pages(pages),
            part.layers};
  }
  size_t trees() const {
    return part.is_last() ? TreeMemory::planned_bytes(part.has_target ? models.target.get() : nullptr,
                                                      part.has_draft ? models.draft.get() : nullptr, options)
                          : 0;
  }
  size_t step_rows() const {
    return part.is_last() ? step_row_bytes(models.draft.get(), device, *models.target, options) : 0;
  }
  // The last device chooses the tokens of a model that is split by layers.
  size_t loop() const { return part.is_last() && part.has_target ? device.loop_bytes(*models.target, options) : 0; }
  size_t scratch() const { return scratch_bytes(options.prefill_chunk, options.context); }

  // Excluding the KV cache.
  size_t session() const {
    return ShardState::planned_bytes(models.layer_shapes(), state_options(options), part.layers) + trees() +
           step_rows() + loop();
  }
  size_t pass_buffers() const { return Shard::pass_buffers_bytes(models, options, part); }
  size_t hand_over() const {
    if (models.target->is_slice()) return exchange_bytes(models, options);
    return hand_over_bytes(models, options, part);
  }
  // Buffers that all sessions share.
  size_t shared() const { return scratch() + pass_buffers() + hand_over(); }
  // Sessions for whose windows a budget has room beside the KV cache; at least one.
  int fitting_windows(size_t budget) const {
    EngineSizes other = *this;
    const auto fits = [&](int n) {
      other.options.window_sessions = n;
      const size_t others = other.kv_bytes(kv_pages()) + shared();
      return others <= budget && size_t(n) <= (budget - others) / std::max(session(), size_t{1});
    };
    int64_t low = 1, high = options.max_window_sessions;
    while (low < high) {
      const int64_t middle = (low + high + 1) / 2;
      fits(int(middle)) ? low = middle : high = middle - 1;
    }
    return int(low);
  }
  // A session, the KV cache and the shared buffers.
  size_t needed() const { return session() + kv_bytes(kv_pages()) + shared(); }
};

// Default pages of the KV cache: one context per session, or as many as fit.
int fitting_kv_pages(const EngineSizes& engine, size_t budget) {
  const int least = n_pages(engine.options.context);
  size_t others = 0;  // without the KV cache
  if (__builtin_mul_overflow(size_t(engine.options.sessions), engine.session(), &others) ||
      __builtin_add_overflow(others, engine.shared(), &others) || others > budget)
    return least;
  int64_t low = least, high = int64_t{least} * engine.options.sessions;
  while (low < high) {
    const int64_t middle = (low + high + 1) / 2;
    const bool fits = middle * kPageTokens <= std::numeric_limits<int>::max() &&
                      engine.kv_bytes(static_cast<int>(middle)) <= budget - others;
    fits ? low = middle : high = middle - 1;
  }
  return static_cast<int>(low);
}

std::string activations_detail(const EngineOptions& options) {
  const int steps = PassBuffers::step_rows(options);
  return options.prefill_chunk > steps ? cat(options.prefill_chunk, " rows of a prompt, ", steps, " beside them")
                                       : cat(options.prefill_chunk, " rows");
}

std::vector<PlanEntry> entries_of(const EngineSizes& engine, const WeightSizes& weights, size_t step_bytes) {
  const auto& [models, device, options, part, scratch_bytes] = engine;
  const size_t logits =
      part.is_last() && part.has_target ? sizeof(float) * PassBuffers::kLogitRows * models.target->info().vocab : 0;
  std::vector<PlanEntry> entries = weights.device_entries();
  const auto add = [&](std::vector<PlanEntry> more) { std::ranges::move(more, std::back_inserter(entries)); };
  add(engine.state().entries(options.kv, options.kv_tokens));
  add({
      {"activations", engine.pass_buffers() - logits, activations_detail(options)},
      {"hand-over", engine.hand_over(),
       models.target->is_slice() ? "values on their way from the other devices"
       : part.n == 1             ? "rows on their way to the draft model"
       : part.is_last()          ? "tokens on their way to the first device"
                                 : "rows on their way to the next device"},
      {"logits", logits, cat(PassBuffers::kLogitRows, " rows")},
      {"tree logits", engine.trees(), cat("trees of ", options.tree_rows(), " rows"), true},
      {"draft rows", engine.step_rows(), cat("tapped rows of ", StepRing::kRows, " plain steps"), true},
      {"kernel scratch", engine.scratch(), device.scratch_detail(stream_needs(models, options, part))},
      {"sampler", engine.loop(), "logits, penalties and history", true},
      {"decode step", step_bytes, "tasks, weight offsets and mailboxes of the megakernel", true},
  });
  add(weights.host_entries());
  std::erase_if(entries, [](const PlanEntry& entry) { return entry.bytes == 0; });
  return entries;
}

}  // namespace

std::vector<PlanEntry> tower_entries(VisionTower* tower, const DeviceSizes& sizes, const EngineOptions& options) {
  if (tower == nullptr) return {};
  if (!sizes.maps_weights()) return DeviceTower::entries(*tower, sizes, options);
  const int n = tower->config().max_patches();
  return {{"vision tower", tower->private_bytes(), "patch weights, positions, norms and biases as F32"},
          {"image buffers", tower->scratch_bytes(n), cat("while an image is encoded, up to ", n, " patches")}};
}

MemoryPlan make_tower_plan(VisionTower& tower, const DeviceSizes& sizes, const EngineOptions& options) {
  const size_t free = sizes.free_bytes(), reserved = sizes.reserved_bytes();
  MemoryPlan plan{.device = sizes.name(),
                  .entries = tower_entries(&tower, sizes, options),
                  .mapped_bytes = sizes.maps_weights() ? tower.own_file_bytes() : 0,
                  .available_bytes = free > reserved ? free - reserved : 0};
  LB_CHECK(plan.total_bytes() <= plan.available_bytes, kMemory, options.mmproj, ": the vision tower needs ",
           mib(plan.total_bytes()), ", and ", mib(plan.available_bytes), " of ", sizes.memory_name(),
           " are available. Name another vision_device");
  return plan;
}

size_t step_row_bytes(const DraftModel* draft, const DeviceSizes& sizes, const Model& model,
                      const EngineOptions& options) {
  return draft == nullptr || sizes.loop_bytes(model, options) == 0 ? 0 : StepRows::planned_bytes(*draft);
}

StateOptions state_options(const ModelOptions& options) {
  return {options.context, options.kv.k, options.kv.v, options.prefill_chunk};
}

StreamNeeds stream_needs(const Models& models, const EngineOptions& options, const NetworkPart& part) {
  return {.networks = part.has_draft ? models.networks() : Networks{models.target.get()},
          .rows = options.prefill_chunk,
          .context = options.context,
          .n_threads = options.threads,
          .isa = options.isa,
          .activations = options.activations,
          .one_order = options.batch_invariant,
          .is_sparse = options.sparse_prefill > 0,
          .awaits_queues = models.target->is_slice() || part.n > 1 || models.target->expert_slots() > 0};
}

size_t row_bytes(const Models& models, const EngineOptions& options) {
  return sizeof(float) * std::max(PassBuffers::step_rows(options), options.prefill_chunk) *
         models.target->info().hidden;
}

size_t step_token_bytes() { return sizeof(int32_t) * kMaxStepRows; }

size_t tap_bytes(const Models& models, const EngineOptions& options) {
  return sizeof(float) * std::max(PassBuffers::step_rows(options), options.prefill_chunk) * models.draft->tap_width();
}

size_t hand_over_bytes(const Models& models, const EngineOptions& options, const NetworkPart& part) {
  const size_t taps = models.hands_over_taps(part) ? DeviceLink::planned_bytes(tap_bytes(models, options)) : 0;
  if (part.n == 1) return taps;
  return taps + DeviceLink::planned_bytes(part.is_last() ? step_token_bytes() : row_bytes(models, options));
}

long exchange_values(const Models& models, const EngineOptions& options) {
  const Model& model = *models.target;
  const long rows = row_bytes(models, options) / sizeof(float),
             logits = long{Model::kGatherRows} * model.widest_vocab();
  return std::max(rows, logits);
}

size_t exchange_bytes(const Models& models, const EngineOptions& options) {
  const Model& model = *models.target;
  Carver logits;
  logits.take<float>(model.own_vocab(), Model::kGatherRows);
  return RankGroup::planned_bytes(model.n_ranks(), exchange_values(models, options)) + logits.used();
}

EnginePlanner::EnginePlanner(const Models& models, const DeviceSizes& sizes, size_t file_bytes,
                             const EngineOptions& options, const NetworkPart& part, VisionTower* tower)
    : models_(models),
      sizes_(sizes),
      file_bytes_(file_bytes + (tower == nullptr ? 0 : tower->own_file_bytes())),
      part_(part),
      images_(tower_entries(tower, sizes, options)),
      scratch_(sizes.scratch_of(stream_needs(models, options, part))) {
  for (const PlanEntry& entry : images_) image_bytes_ += entry.bytes;
}

ContextDemand EnginePlanner::demand(const EngineOptions& options) const {
  const EngineSizes asked{models_, sizes_, options, part_, scratch_};
  const size_t step_bytes = part_.n == 1 && part_.has_target ? sizes_.step_bytes(models_, options) : 0;
  return {.models = models_,
          .sizes = sizes_,
          .weights = WeightSizes(models_, sizes_, file_bytes_, part_),
          .fixed_bytes = step_bytes + image_bytes_,
          .needed_bytes = [asked](int context, const KvTypes& kv) { return asked.at(context, kv).needed(); },
          .token_bytes =
              [asked](const KvTypes& kv) {
                const StateSizes state = asked.at(asked.models.target->info().max_context, kv).state();
                return state.target.token_bytes + state.draft.token_bytes;
              },
          .max_tokens = options.kv_tokens};
}

FittedContext EnginePlanner::settle(const ContextDemand& demand, EngineOptions& options) const {
  const FittedContext fitted = fit_context(demand, options);
  EngineSizes settled{models_, sizes_, options, part_, scratch_};
  if (options.window_sessions == 0)
    options.window_sessions = settled.options.window_sessions = settled.fitting_windows(fitted.budget);
  const int pages = options.kv_tokens > 0 ? settled.kv_pages() : fitting_kv_pages(settled, fitted.budget);
  options.kv_tokens = pages * kPageTokens;
  return fitted;
}

int EnginePlanner::settle(EngineOptions& options) const { return settle(demand(options), options).largest_context; }

bool EnginePlanner::fits(const EngineOptions& options) const { return context_fits(demand(options), options); }

MemoryPlan EnginePlanner::plan(EngineOptions& options) const {
  const ContextDemand demand = this->demand(options);
  MemoryPlan plan = start_plan(demand, settle(demand, options), options);
  if (Window(models_.layer_shapes()).exists()) plan.window_sessions = options.window_sessions;
  plan.kv_tokens = options.kv_tokens;
  plan.entries =
      entries_of({models_, sizes_, options, part_, scratch_}, demand.weights, demand.fixed_bytes - image_bytes_);
  std::ranges::copy(images_, std::back_inserter(plan.entries));
  return plan;
}

}  // namespace lb
