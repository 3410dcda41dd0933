// The parts of lucebox._engine; each file converts and forwards, and computes nothing.
#pragma once

#include <nanobind/nanobind.h>

namespace lb {

void bind_engine(nanobind::module_& m);  // Engine, Session, Sampler
void bind_format(nanobind::module_& m);  // GgufFile, Safetensors
void bind_gpu(nanobind::module_& m);     // devices, packs
void bind_prompt_scorer(nanobind::module_& m);
void bind_speculation(nanobind::module_& m);  // EarlierOutputs

}  // namespace lb
