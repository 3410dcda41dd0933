// What sessions share to draft from.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "bindings/bindings.h"
#include "speculation/suffix.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lb {
namespace {

using Ids = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

}  // namespace

void bind_speculation(nb::module_& m) {
  nb::class_<EarlierOutputs>(m, "EarlierOutputs", "The newest outputs of an engine's sessions.")
      .def(nb::init<int>(), "capacity"_a)
      .def(
          "add", [](EarlierOutputs& outputs, const Ids& output) { outputs.add({output.data(), output.size()}); },
          "output"_a)
      .def("clear", &EarlierOutputs::clear)
      .def_prop_ro("n_tokens", &EarlierOutputs::n_tokens);
}

}  // namespace lb
