// Searches for the number of experts that fit beside everything else.
#include "engine/plan_experts.h"

#include <algorithm>
#include <optional>

#include "base/error.h"

namespace lb {
namespace {

// Tokens of the default context if experts are in host memory, and the least that keeps them out of it.
constexpr int kExpertContext = 16384;
// Default rows of a prompt's chunk if experts are in host memory, which each chunk copies. A device with longer chunks
// of its own computes faster than it copies, so its chunks become longer, too.
int expert_chunk(int device_chunk) { return std::clamp(4 * device_chunk, 2048, 8192); }

class ExpertPlanner {
 public:
  // chunk: options.prefill_chunk if experts are in host memory; 0: as given.
  ExpertPlanner(const Models& models, const EnginePlanner& planner, int chunk)
      : models_(models), planner_(planner), chunk_(chunk) {}

  const ExpertProducts& experts() const { return models_.target->expert_products(); }
  // The plan with this many experts of each layer in device memory.
  MemoryPlan at(int slots, EngineOptions& options) const {
    set_slots(slots, options);
    return planner_.plan(options);
  }
  // Whether memory suffices with this many experts of each layer, fewer than all.
  bool fits(int slots, EngineOptions options) const {
    set_slots(slots, options);
    return planner_.fits(options);
  }
  // The number of experts that the options name; at least the experts of one token.
  int asked(const EngineOptions& options) const {
    LB_CHECK(options.expert_slots == 0 || options.expert_memory == 0, kInvalid,
             "expert_slots and expert_memory say the same in two ways: give one of them");
    const size_t each = models_.target->expert_bytes() + (models_.draft ? models_.draft->expert_bytes() : 0);
    const size_t n = options.expert_slots > 0 ? options.expert_slots : options.expert_memory / each;
    const std::string given = options.expert_slots > 0 ? cat("expert_slots = ", options.expert_slots)
                                                       : cat("expert_memory = ", options.expert_memory, " bytes, ", n,
                                                             " experts of each layer");
    LB_CHECK(n >= size_t(experts().used), kInvalid, given, ": a token of this model chooses ", experts().used,
             " experts in each layer, which take ", experts().used * each, " bytes");
    return static_cast<int>(std::min(n, size_t(experts().n)));
  }
  int max_context() const { return models_.target->info().max_context; }
  // Takes the given chunk if the larger one leaves too little memory for this many experts.
  void fit_chunk(int slots, const EngineOptions& options) {
    if (!fits(slots, options)) chunk_ = 0;
  }

 private:
  void set_slots(int slots, EngineOptions& options) const {
    const int set = slots < experts().n ? slots : 0;
    models_.target->set_expert_slots(set);
    if (models_.draft) models_.draft->set_expert_slots(models_.draft->expert_products().n > 0 ? set : 0);
    options.expert_slots = set;
    if (set > 0 && options.context == 0) options.context = std::min(kExpertContext, max_context());
    if (set > 0 && chunk_ > 0) options.prefill_chunk = chunk_;
  }

  const Models& models_;
  const EnginePlanner& planner_;
  int chunk_;
};

constexpr const char* kNeedsNvidia = "experts in host memory need an NVIDIA GPU from sm_80 on";

// The plan with all experts in device memory, if it has the wanted context.
std::optional<MemoryPlan> resident_plan(const ExpertPlanner& planner, EngineOptions& options) {
  EngineOptions own = options;
  try {
    MemoryPlan plan = planner.at(planner.experts().n, own);
    if (options.context == 0 && plan.context < std::min(kExpertContext, planner.max_context())) return std::nullopt;
    options = own;
    return plan;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kMemory) throw;
    return std::nullopt;
  }
}

}  // namespace

MemoryPlan make_expert_plan(const Models& models, const DeviceSizes& sizes, size_t file_bytes, EngineOptions& options,
                            VisionTower* tower, bool has_own_chunk) {
  const EnginePlanner all(models, sizes, file_bytes, options, {}, tower);
  ExpertPlanner planner(models, all, has_own_chunk ? expert_chunk(options.prefill_chunk) : 0);
  const ExpertProducts& experts = planner.experts();
  if (asks_for_slots(options)) {
    LB_CHECK(experts.n > 0, kInvalid,
             "expert_slots and expert_memory are for mixtures of experts, and this model is none");
    LB_CHECK(!sizes.maps_weights(), kUnsupported,
             "expert_slots and expert_memory need a GPU: on the CPU, all experts stay in the file's mapping");
    LB_CHECK(sizes.has_expert_slots(), kUnsupported, "expert_slots and expert_memory on ", sizes.name(), ": ",
             kNeedsNvidia);
    const int asked = planner.asked(options);
    planner.fit_chunk(asked, options);
    return planner.at(asked, options);
  }
  if (experts.n == 0 || sizes.maps_weights()) return all.plan(options);
  if (std::optional<MemoryPlan> plan = resident_plan(planner, options)) return std::move(*plan);
  if (!sizes.has_expert_slots()) try {
      return planner.at(experts.n, options);
    } catch (const Error& error) {
      fail(error.code(), error.what(), ". This device must have all experts in its memory: ", kNeedsNvidia);
    }
  planner.fit_chunk(experts.used, options);
  if (!planner.fits(experts.used, options)) return planner.at(experts.used, options);
  int low = experts.used, high = experts.n - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    planner.fits(middle, options) ? low = middle : high = middle - 1;
  }
  return planner.at(low, options);
}

}  // namespace lb
