// The parts of lucebox._engine. Each file only converts arguments and forwards calls.
#pragma once

#include <nanobind/nanobind.h>

namespace lb {

void bind_engine(nanobind::module_& m);  // Engine
void bind_format(nanobind::module_& m);  // GgufFile, Safetensors
void bind_gpu(nanobind::module_& m);     // devices, packs
void bind_memory_plan(nanobind::module_& m);
void bind_prompt_scorer(nanobind::module_& m);
void bind_sampler(nanobind::module_& m);
void bind_session(nanobind::module_& m);      // Session, and passes of several sessions
void bind_speculation(nanobind::module_& m);  // EarlierOutputs

}  // namespace lb
