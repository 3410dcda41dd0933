// The extension module lucebox._kernels: single ops, launches, parts of speculation and times of sessions, for the
// self-test, tuning, benchmarks and tests. It is in the library of lucebox._engine and uses that module's types and
// error translation.
#include <nanobind/nanobind.h>

#include "bindings/kernels/bindings.h"

namespace nb = nanobind;

NB_MODULE(_kernels, m) {
  m.doc() = "Single ops and launches, for the self-test, tuning and benchmarks; no public interface.";
  lb::kernels::bind_draft(m);
  lb::kernels::bind_session_probe(m);
  nb::module_ driver = m.def_submodule("driver", "Memory, modules and launches of a device.");
  lb::kernels::bind_driver(driver);
  lb::kernels::bind_link(driver);
  nb::module_ ops = m.def_submodule("ops", "Single ops, on the CPU or on a pack's device.");
  lb::kernels::bind_ops(ops);
  lb::kernels::bind_exchange(ops);
  lb::kernels::bind_gpu_sample(ops);
  lb::kernels::bind_gpu_megakernel(ops);
  nb::module_ launch = m.def_submodule("launch", "Kernels and geometry of ops on any target.");
  lb::kernels::bind_launch(launch);
  nb::module_ weights = m.def_submodule("weights", "Types and layouts of weights, and their loading to a device.");
  lb::kernels::bind_weights(weights);
  lb::kernels::bind_gpu_load(weights);
  lb::kernels::bind_split(weights);
  nb::module_ speculation = m.def_submodule("speculation", "Suffix drafts and the width of a step.");
  lb::kernels::bind_speculation(speculation);
}
