// Engine for Python.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "base/bandwidth.h"
#include "base/error.h"
#include "bindings/bindings.h"
#include "bindings/byte_arrays.h"
#include "bindings/calls.h"
#include "bindings/options.h"
#include "bindings/python_pack.h"
#include "engine/backend_cpu.h"
#include "engine/backend_gpu.h"
#include "engine/engine.h"
#include "state/page_pool.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lb {
namespace {

std::shared_ptr<Engine> open_engine(const std::string& path, const PythonPack* pack,
                                    const std::shared_ptr<Engine>& lender, const nb::object& progress,
                                    const nb::kwargs& named) {
  const EngineOptions options = engine_options_of(named);
  LB_CHECK(lender == nullptr || pack != nullptr, kInvalid, "an engine on the CPU needs no lender of device memory");
  std::unique_ptr<Backend> backend;
  if (pack != nullptr) backend = gpu_backend(pack->shared(), pack->name(), lender);
  SignalPoll poll;
  const auto report = [&](size_t done, size_t total) {
    if (poll()) fail(ErrorCode::kCancelled, "cancelled by the caller");
    if (progress.is_none()) return;
    nb::gil_scoped_acquire gil;
    progress(done, total);
  };
  return without_gil([&] { return Engine::open(path, options, std::move(backend), report); });
}

nb::dict info_of(const Engine& engine) {
  const ModelInfo& info = engine.model().info();
  nb::dict d;
  d["architecture"] = info.architecture;
  d["n_layers"] = info.n_layers;
  d["hidden"] = info.hidden;
  d["ffn"] = info.ffn;
  d["vocab"] = info.vocab;
  d["n_heads"] = info.n_heads;
  d["n_kv_heads"] = info.n_kv_heads;
  d["head_dim"] = info.head_dim;
  d["tied"] = info.tied;
  d["max_context"] = info.max_context;
  d["bytes_per_token"] = engine.model().bytes_per_token();
  int n_recurrent = 0;
  for (const LayerShape& shape : engine.model().layer_shapes())
    n_recurrent += std::holds_alternative<RecurrentShape>(shape);
  d["n_recurrent_layers"] = n_recurrent;
  return d;
}

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
  d["context"] = plan.context;
  d["max_context"] = plan.max_context;
  d["kv_tokens"] = plan.kv_tokens;
  d["largest_context"] = plan.largest_context;
  nb::list fits;
  for (const KvFit& fit : plan.kv_fits)
    fits.append(nb::make_tuple(to_string(fit.kv), fit.token_bytes, fit.largest_context));
  d["kv_fits"] = fits;
  return d;
}

nb::tuple plan_memory(const std::string& path, size_t free_bytes, const std::string& manifest_json, int n_sms,
                      const std::string& name, bool is_lent, const nb::kwargs& named) {
  EngineOptions options = engine_options_of(named);
  const std::unique_ptr<DeviceSizes> sizes = manifest_json.empty()
                                                 ? cpu_sizes(free_bytes)
                                                 : gpu_sizes(gpu::target_of(manifest_json, n_sms), name, free_bytes,
                                                             is_lent ? MemorySource::kLent : MemorySource::kFree);
  const MemoryPlan plan = without_gil([&] { return Engine::plan(path, options, *sizes); });
  return nb::make_tuple(dict_of_plan(plan), dict_of(options));
}

nb::object step_costs_of(const Engine& engine) {
  const std::optional<StepCosts> costs = engine.step_costs();
  if (!costs) return nb::none();
  nb::list append;
  for (const auto& [rows, ms] : costs->append) append.append(nb::make_tuple(rows, ms));
  nb::dict d;
  d["append"] = append;
  d["plain_ms"] = costs->plain_ms;
  d["draft_ms"] = costs->draft_ms;
  d["draft_depth"] = costs->draft_depth;
  d["first_ms"] = costs->first_ms;
  d["context_ms"] = costs->context_ms;
  d["is_fixed"] = costs->is_fixed;
  return d;
}

std::optional<std::string> draft_kind_of(const Engine& engine) {
  return engine.draft_model() == nullptr ? std::nullopt : std::optional(engine.draft_model()->kind());
}

void set_step_costs(Engine& engine, const nb::dict& d) {
  StepCosts costs;
  for (const auto& [rows, ms] : nb::cast<std::vector<std::pair<int, double>>>(d["append"]))
    costs.append.push_back({rows, ms});
  costs.plain_ms = nb::cast<double>(d["plain_ms"]);
  costs.draft_ms = nb::cast<double>(d["draft_ms"]);
  costs.draft_depth = nb::cast<int>(d["draft_depth"]);
  costs.first_ms = nb::cast<double>(d["first_ms"]);
  costs.context_ms = nb::cast<double>(d["context_ms"]);
  costs.is_fixed = nb::cast<bool>(d["is_fixed"]);
  engine.set_step_costs(costs);
}

ByteArray bytes_of_run(const Engine& engine, const PageRun& run) {
  LB_CHECK(&run.pool() == engine.pages().get(), kInvalid, "these pages are of another engine");
  return filled(run.pages().size() * run.pool().page_bytes(), [&](auto to) {
    const std::lock_guard lock(engine.executor().mutex);
    run.pool().read(run.pages(), to);
  });
}

}  // namespace

void bind_engine(nb::module_& m) {
  m.def(
      "read_bandwidth",
      [](int threads, size_t bytes) { return without_gil([&] { return read_bandwidth(threads, bytes); }); },
      "threads"_a, "bytes"_a, "Best measured GB/s of reading `bytes` of memory with `threads` threads.");
  m.def("plan_memory", &plan_memory, "path"_a, "free_bytes"_a, "manifest_json"_a, "n_sms"_a, "name"_a,
        "is_lent"_a = false, "options"_a,
        "The plan of Engine.open and the options it resolves, for a GPU with this pack, or for the CPU (an empty "
        "manifest; free_bytes 0: of this machine). is_lent: an engine lends these bytes of its weights. Loads no "
        "weights.");

  nb::class_<Engine>(m, "Engine", "One model's weights, immutable, with the plan of all memory it will use.")
      .def_prop_ro_static(
          "EARLIER_TOKENS", [](nb::handle) { return Engine::kEarlierTokens; },
          "Tokens of earlier outputs that an engine keeps for suffix drafts.")
      .def_static("open", &open_engine, "path"_a, "pack"_a = nb::none(), "lender"_a = nb::none(),
                  "progress"_a = nb::none(), "options"_a,
                  "lender: an engine on the same device whose weights make way while this one, which scores prompts, "
                  "computes.")
      .def_prop_ro(
          "options", [](const Engine& engine) { return dict_of(engine.options()); }, "What each option came to.")
      .def_prop_ro("info", &info_of)
      .def_prop_ro("plan", [](const Engine& engine) { return dict_of_plan(engine.plan()); })
      .def_prop_rw(
          "step_costs", &step_costs_of, &set_step_costs,
          "Milliseconds of a step, which the first session measures: {append: [(rows, ms)], plain_ms, draft_ms, "
          "draft_depth, first_ms, context_ms, is_fixed}; None before. Real times of steps replace them unless "
          "is_fixed.")
      .def_prop_ro("draft_may_pay", &Engine::draft_may_pay,
                   "Whether the draft model gains at these costs if its drafts are as good as those of trained "
                   "drafters mostly are. True without a draft model, without costs and with a fixed budget.")
      .def_prop_ro(
          "n_pages", [](const Engine& engine) { return engine.pages() ? engine.pages()->n_pages() : 0; },
          "Pages of the KV cache, of 64 tokens each.")
      .def_prop_ro(
          "n_free_pages", [](const Engine& engine) { return engine.pages() ? engine.pages()->n_free() : 0; },
          "Pages that no session holds and no PageRun refers to.")
      .def("read_pages", &bytes_of_run, "run"_a, "The bytes of the pages, as Session.read_pages() returns them.")
      .def_prop_ro("draft_kind", &draft_kind_of, "Draft model: \"dflash\", \"mtp\", or None without one.")
      .def_prop_ro("outputs", &Engine::outputs, "Earlier outputs, which the suffix drafter reads; None without it.")
      .def_prop_ro("fingerprint", &Engine::fingerprint,
                   "A hash of the files' metadata, all weights and the settings that a saved "
                   "session depends on. The first access reads all bytes of the files.")
      .def_prop_ro("layout", &Engine::layout,
                   "A hash of the files' metadata, and names, types and shapes of their tensors.");
}

}  // namespace lb
