// EarlierOutputs for Python: outputs that sessions share for drafting.
#include <nanobind/nanobind.h>

#include "bindings/bindings.h"
#include "bindings/ids.h"
#include "speculation/suffix.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lb {

void bind_speculation(nb::module_& m) {
  nb::class_<EarlierOutputs>(m, "EarlierOutputs", "The newest outputs of sessions, up to `capacity` tokens.")
      .def(nb::init<int>(), "capacity"_a)
      .def(
          "add", [](EarlierOutputs& outputs, const Ids& output) { outputs.add(span(output)); }, "output"_a)
      .def("clear", &EarlierOutputs::clear)
      .def_prop_ro("n_tokens", &EarlierOutputs::n_tokens);
}

}  // namespace lb
