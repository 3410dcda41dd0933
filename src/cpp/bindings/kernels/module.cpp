// The extension module lucebox._kernels: single ops, launches and parts of speculation, for the self-test, tuning,
// benchmarks and tests. It is in the library of lucebox._engine and uses that module's types and error translation.
#include <nanobind/nanobind.h>

#include "bindings/kernels/bindings.h"

namespace nb = nanobind;

NB_MODULE(_kernels, m) {
  m.doc() = "Single ops and launches, for the self-test, tuning and benchmarks; no public interface.";
  lb::kernels::bind_draft(m);
  nb::module_ ops = m.def_submodule("ops", "Single ops on numpy arrays.");
  lb::kernels::bind_ops(ops);
  nb::module_ driver = m.def_submodule("driver", "Memory, modules and launches of a device.");
  lb::kernels::bind_driver(driver);
  nb::module_ gpu_ops = m.def_submodule("gpu_ops", "Single ops on a device, as in ops, with a gpu.Pack first.");
  lb::kernels::bind_gpu_ops(gpu_ops);
  lb::kernels::bind_launch(gpu_ops);
  nb::module_ speculation = m.def_submodule("speculation", "Suffix drafts and the width of a step.");
  lb::kernels::bind_speculation(speculation);
}
