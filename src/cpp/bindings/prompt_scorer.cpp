// PromptScorer for Python.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include "bindings/arrays.h"
#include "bindings/bindings.h"
#include "bindings/calls.h"
#include "bindings/ids.h"
#include "engine/prompt_scorer.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lb {
namespace {

Array<float, 1> score(PromptScorer& scorer, const Ids& ids, const std::vector<int>& layers,
                      const nb::object& progress) {
  SignalPoll poll;
  auto scores = without_gil([&] { return scorer.score(span(ids), layers, std::ref(poll), progress_of(progress)); });
  return to_numpy<1>(std::move(scores), {ids.size()});
}

}  // namespace

void bind_prompt_scorer(nb::module_& m) {
  nb::class_<PromptScorer>(m, "PromptScorer", "How much the last rows of a prompt look at each of its tokens.")
      .def(
          "__init__",
          [](PromptScorer* self, std::shared_ptr<Engine> engine) { new (self) PromptScorer(std::move(engine)); },
          "engine"_a, "Takes an engine that was opened with score_rows.")
      .def(
          "scored_layers",
          [](const PromptScorer& self, const std::vector<int>& layers) { return self.scored_layers(layers); },
          "layers"_a, "The layers, or all with attention where there are none. Refuses layers that cannot score.")
      .def("score", &score, "ids"_a, "layers"_a = std::vector<int>{}, "progress"_a = nb::none(),
           "One score for each token: its largest softmax weight among the heads of `layers` (empty: all with "
           "attention), the mean over the last score_rows tokens. Layers behind the last of them are not computed. "
           "progress(done, total) in tokens, layer by layer; it must not compute with this engine or its lender.");
}

}  // namespace lb
