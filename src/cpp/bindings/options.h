// Options by name: the fields of lucebox.EngineOptions and lucebox.Sampling that the engine or a scorer reads.
// option_rows.h has one row for each; Python passes a dataclass as keywords.
#pragma once

#include <nanobind/nanobind.h>

#include "engine/options.h"
#include "sampling/sampler.h"

namespace lb {

// None or a missing name means the default. Throws TypeError for an unknown name or a value of the wrong type, Error
// for a word that the option does not accept.
EngineOptions engine_options_of(const nanobind::kwargs& options);
ScorerOptions scorer_options_of(const nanobind::kwargs& options);
SamplingParams sampling_params_of(const nanobind::kwargs& options);

// The reverse, with the same names.
nanobind::dict dict_of(const EngineOptions& options);
nanobind::dict dict_of(const ScorerOptions& options);

}  // namespace lb
