// PromptScorer for Python.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings/arrays.h"
#include "bindings/bindings.h"
#include "bindings/calls.h"
#include "bindings/ids.h"
#include "bindings/memory_plan.h"
#include "bindings/options.h"
#include "bindings/python_pack.h"
#include "engine/backend_gpu.h"
#include "engine/engine.h"
#include "engine/prompt_scorer.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lb {
namespace {

std::shared_ptr<PromptScorer> open_scorer(const std::string& path, const PythonPack* pack,
                                          const std::shared_ptr<Engine>& lender, const nb::object& progress,
                                          const nb::kwargs& named) {
  const ScorerOptions options = scorer_options_of(named);
  LB_CHECK(lender == nullptr || pack != nullptr, kInvalid, "a scorer on the CPU needs no lender of device memory");
  std::unique_ptr<Backend> backend;
  if (pack != nullptr) backend = gpu_backend(pack->shared(), pack->name(), lender);
  const LoadReport report(progress);
  return without_gil([&] { return PromptScorer::open(path, options, std::move(backend), std::ref(report)); });
}

Array<float, 1> score(PromptScorer& scorer, const Ids& ids, const std::vector<int>& layers, const nb::object& progress,
                      const nb::object& check) {
  SignalPoll poll(check);
  auto scores = without_gil([&] { return scorer.score(span(ids), layers, std::ref(poll), progress_of(progress)); });
  return to_numpy<1>(std::move(scores), {ids.size()});
}

}  // namespace

void bind_prompt_scorer(nb::module_& m) {
  nb::class_<PromptScorer>(m, "PromptScorer",
                           "A model that tells how much the last rows of a prompt look at each of its tokens.")
      .def_static("open", &open_scorer, "path"_a, "pack"_a = nb::none(), "lender"_a = nb::none(),
                  "progress"_a = nb::none(), "options"_a,
                  "lender: an engine on the same device whose weights make way while the scorer computes.")
      .def_prop_ro(
          "options", [](const PromptScorer& scorer) { return dict_of(scorer.options()); }, "What each option came to.")
      .def_prop_ro("plan", [](const PromptScorer& scorer) { return dict_of_plan(scorer.memory_plan()); })
      .def(
          "scored_layers",
          [](const PromptScorer& self, const std::vector<int>& layers) { return self.scored_layers(layers); },
          "layers"_a, "The layers, or all with attention where there are none. Refuses layers that cannot score.")
      .def("score", &score, "ids"_a, "layers"_a = std::vector<int>{}, "progress"_a = nb::none(), "check"_a = nb::none(),
           "One score for each token: its largest softmax weight among the heads of `layers` (empty: all with "
           "attention), the mean over the last score_rows tokens. Layers after the last of them are not computed. "
           "progress(done, total) in tokens, layer by layer; it must not compute with this scorer or its lender. "
           "check() is "
           "called every 50 ms, and ends the call by raising.");
}

}  // namespace lb
