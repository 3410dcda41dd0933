// The rotation frequencies of a checkpoint, with the scaling rules its configuration may ask for.
#pragma once

#include <span>

#include "models/fields.h"
#include "models/model.h"

namespace lb {

// Plain theta, "linear" and "llama3" scaling (the latter is a rope_freqs tensor in GGUF); other rules are refused by
// name. mrope_sections: pairs given to temporal, height and width positions, interleaved; empty for ordinary rope.
RopeAngles rope_angles(const Fields& fields, Binder& binder, int n_rot, std::span<const int> mrope_sections = {});

}  // namespace lb
