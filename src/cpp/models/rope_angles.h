// The rope frequencies of a checkpoint, with its scaling rule applied.
#pragma once

#include <span>

#include "models/fields.h"
#include "models/model.h"

namespace lb {

// Supports plain theta, "linear" and "llama3" scaling (in GGUF a rope_freqs tensor); throws on other rules by name.
// mrope_sections: how many pairs take temporal, height and width positions, interleaved; empty: ordinary rope.
RopeAngles rope_angles(const Fields& fields, Binder& binder, int n_rot, std::span<const int> mrope_sections = {});

}  // namespace lb
