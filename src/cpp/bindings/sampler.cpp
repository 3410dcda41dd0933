// Sampler for Python.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#include <limits>

#include "bindings/bindings.h"
#include "bindings/ids.h"
#include "bindings/options.h"
#include "sampling/sampler.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lb {

void bind_sampler(nb::module_& m) {
  m.def(
      "check_sampling",
      [](const nb::kwargs& options) { validate(sampling_params_of(options), std::numeric_limits<int32_t>::max()); },
      "options"_a, "Checks the ranges of sampling options, without a vocabulary.");
  m.def("uniform_draw", &uniform_draw, "seed"_a, "draw"_a, "The uniform number in [0, 1) of draw number `draw`.");

  nb::class_<Sampler>(m, "Sampler", "Turns logits into tokens, one uniform draw per sampled token.")
      .def(
          "__init__",
          [](Sampler* self, int vocab, const nb::kwargs& options) {
            new (self) Sampler(sampling_params_of(options), vocab);
          },
          "vocab"_a, "options"_a)
      .def(
          "set_prompt", [](Sampler& s, const Ids& ids) { s.set_prompt(span(ids)); }, "ids"_a)
      .def(
          "set_mask",
          [](Sampler& s, std::optional<nb::ndarray<const uint32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>> bits) {
            s.set_mask(bits ? std::span(bits->data(), bits->size()) : std::span<const uint32_t>());
          },
          "bits"_a.none(),
          "Until the next call, allows only tokens whose bit (id % 32 of word id // 32) is set; None allows all.")
      .def(
          "sample",
          [](Sampler& s, nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu> logits) {
            return s.sample({logits.data(), logits.size()});
          },
          "logits"_a)
      .def("record_forced", &Sampler::record_forced, "token"_a,
           "Records a token that the caller appended without sampling; penalties count it.")
      .def("drop_last", &Sampler::drop_last,
           "Removes the token recorded last, which another one replaces; penalties no longer count it.");
}

}  // namespace lb
