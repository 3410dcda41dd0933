// Options by name: the fields of lucebox.EngineOptions and lucebox.Sampling that the engine or a scorer reads.
// options.cpp has one row for each; Python passes a dataclass as keywords.
#pragma once

#include <nanobind/nanobind.h>

#include "engine/options.h"
#include "sampling/sampler.h"

namespace lb {

// None and a missing name stand for the default. Throws TypeError for an unknown name or a value of another type, Error
// for a word that the option does not have.
EngineOptions engine_options_of(const nanobind::kwargs& options);
ScorerOptions scorer_options_of(const nanobind::kwargs& options);
SamplingParams sampling_params_of(const nanobind::kwargs& options);

// By the same names.
nanobind::dict dict_of(const EngineOptions& options);
nanobind::dict dict_of(const ScorerOptions& options);

}  // namespace lb
