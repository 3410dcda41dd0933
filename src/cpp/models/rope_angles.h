// The rope frequencies of a checkpoint, with its scaling rule applied.
#pragma once

#include <optional>
#include <span>

#include "models/fields.h"
#include "models/model.h"

namespace lb {

// Supports plain theta, "linear", "llama3" (in GGUF a rope_freqs tensor) and "yarn"; throws on other rules by name.
// mrope_sections: how many pairs take temporal, height and width positions, interleaved; empty: ordinary rope.
RopeAngles rope_angles(const Fields& fields, Binder& binder, int n_rot, std::span<const int> mrope_sections = {});

// Theta of the file; nullopt where it gives none. rope_angles() then takes 10000, as other loaders do.
std::optional<double> find_rope_theta(const Fields& fields);

// The part of a head that config.json rotates. Old and new names of the rope's section may both be present; values
// that contradict each other are an error.
std::optional<double> find_rotary_part(const Fields& fields);

// Tokens that the scaling rule reaches: YaRN's factor times its original context, if that is more than `context`.
int scaled_context(const Fields& fields, int context);

}  // namespace lb
