// Memory plans of engines and scorers for Python, made without loading weights.
#include "bindings/memory_plan.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "base/system.h"
#include "bindings/bindings.h"
#include "bindings/calls.h"
#include "bindings/options.h"
#include "engine/backend_cpu.h"
#include "engine/backend_gpu.h"
#include "engine/engine.h"
#include "engine/prompt_scorer.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lb {
namespace {

std::unique_ptr<DeviceSizes> sizes_of(size_t free_bytes, const std::string& manifest_json, int n_sms,
                                      const std::string& name, MemorySource source) {
  if (manifest_json.empty()) return cpu_sizes(free_bytes);
  return gpu_sizes(gpu::target_of(manifest_json, n_sms), name, free_bytes, source);
}

// free_bytes, manifest_json, n_sms, name of a GPU, or of the CPU, as plan_memory().
using DeviceFacts = std::tuple<size_t, std::string, int, std::string>;

nb::tuple plan_memory(const std::string& path, size_t free_bytes, const std::string& manifest_json, int n_sms,
                      const std::string& name, const std::vector<DeviceFacts>& others,
                      const std::optional<DeviceFacts>& draft_device, const std::optional<DeviceFacts>& vision_device,
                      const nb::kwargs& named) {
  EngineOptions options = engine_options_of(named);
  std::vector<std::unique_ptr<DeviceSizes>> all;
  all.push_back(sizes_of(free_bytes, manifest_json, n_sms, name, MemorySource::kFree));
  const auto sizes_of_facts = [](const DeviceFacts& facts) {
    const auto& [free, manifest, sms, gpu] = facts;
    return sizes_of(free, manifest, sms, gpu, MemorySource::kFree);
  };
  for (const DeviceFacts& other : others) all.push_back(sizes_of_facts(other));
  std::vector<const DeviceSizes*> devices;
  for (const auto& one : all) devices.push_back(one.get());
  const std::unique_ptr<DeviceSizes> draft = draft_device ? sizes_of_facts(*draft_device) : nullptr;
  const std::unique_ptr<DeviceSizes> vision = vision_device ? sizes_of_facts(*vision_device) : nullptr;
  const MemoryPlan plan = without_gil([&] { return Engine::plan(path, options, devices, draft.get(), vision.get()); });
  return nb::make_tuple(dict_of_plan(plan), dict_of(options));
}

nb::dict plan_scorer_memory(const std::string& path, size_t free_bytes, const std::string& manifest_json, int n_sms,
                            const std::string& name, bool is_lent, const nb::kwargs& named) {
  ScorerOptions options = scorer_options_of(named);
  const auto sizes =
      sizes_of(free_bytes, manifest_json, n_sms, name, is_lent ? MemorySource::kLent : MemorySource::kFree);
  return dict_of_plan(without_gil([&] { return PromptScorer::plan(path, options, *sizes); }));
}

}  // namespace

nb::dict dict_of_plan(const MemoryPlan& plan) {
  nb::list entries;
  for (const PlanEntry& entry : plan.entries)
    entries.append(nb::make_tuple(entry.name, entry.bytes, entry.detail, entry.per_session));
  nb::dict d;
  d["entries"] = entries;
  d["total_bytes"] = plan.total_bytes();
  d["place"] = plan.device;
  d["mapped_bytes"] = plan.mapped_bytes;
  d["available_bytes"] = plan.available_bytes;
  d["bytes_per_token"] = plan.bytes_per_token;
  d["n_layers"] = plan.n_layers;
  d["context"] = plan.context;
  d["max_context"] = plan.max_context;
  d["kv_tokens"] = plan.kv_tokens;
  d["window_sessions"] = plan.window_sessions;
  d["largest_context"] = plan.largest_context;
  const ExpertPlan& experts = plan.experts;
  d["experts"] = experts.n == 0 ? nb::object(nb::none())
                                : nb::object(nb::make_tuple(experts.n, experts.used, experts.slots, experts.layers,
                                                            experts.slot_bytes, experts.host_bytes, experts.is_pinned));
  nb::list fits;
  for (const KvFit& fit : plan.kv_fits)
    fits.append(nb::make_tuple(to_string(fit.kv), fit.token_bytes, fit.largest_context));
  d["kv_fits"] = fits;
  nb::list parts;
  for (const MemoryPlan& part : plan.parts) parts.append(dict_of_plan(part));
  d["parts"] = parts;
  d["vision"] = plan.vision.empty() ? nb::object(nb::none()) : nb::object(dict_of_plan(plan.vision[0]));
  return d;
}

void bind_memory_plan(nb::module_& m) {
  m.def(
      "plan_memory", &plan_memory, "path"_a, "free_bytes"_a, "manifest_json"_a, "n_sms"_a, "name"_a,
      "others"_a = std::vector<DeviceFacts>{}, "draft_device"_a = nb::none(), "vision_device"_a = nb::none(),
      "options"_a,
      "Returns the plan that Engine.open would make and the options as it would resolve them, without loading weights. "
      "An empty manifest_json plans for the CPU, where free_bytes = 0 means the free memory of this machine. others: "
      "further devices, as (free_bytes, manifest_json, n_sms, name); draft_device: one for the draft model; "
      "vision_device: "
      "one for the vision tower.");
  m.def("plan_scorer_memory", &plan_scorer_memory, "path"_a, "free_bytes"_a, "manifest_json"_a, "n_sms"_a, "name"_a,
        "is_lent"_a, "options"_a,
        "Returns the plan that PromptScorer.open would make. is_lent: free_bytes are weights that an engine lends.");
  m.def(
      "promised_bytes", [](const std::string& device) { return Device::promised_bytes(device); }, "device"_a,
      "Bytes of a device that engines of this process have reserved for sessions and not yet allocated.");
  m.def("available_memory", &available_memory, "Bytes of main memory that this process can allocate without swapping.");
}

}  // namespace lb
