// The rope frequencies of a checkpoint, with its scaling rule applied.
#pragma once

#include <optional>
#include <span>

#include "models/fields.h"
#include "models/model.h"

namespace lb {

// Where YaRN's ramp starts and ends. A GGUF file does not say it; config.json may.
enum class YarnRange { kWholePairs, kExact };

// Queries are multiplied by 1 + factor ln(1 + floor(position / period)); factor 0: they are not.
struct QueryScale {
  float factor = 0;
  int period = 0;
};

// Supports plain theta, "linear", "llama3" (a rope_freqs tensor in GGUF), "yarn" and "longrope"; throws on other rules
// by name. mrope_sections: numbers of pairs with temporal, height and width positions, interleaved; empty: ordinary
// rope.
RopeAngles rope_angles(const Fields& fields, Binder& binder, int n_rot, std::span<const int> mrope_sections = {},
                       YarnRange gguf_range = YarnRange::kWholePairs);

// The angles of queries that grow with their position.
RopeAngles query_angles(const RopeAngles& angles, const QueryScale& scale, int max_context);

// The file's theta, or nullopt. rope_angles() then uses 10000, like other loaders.
std::optional<double> find_rope_theta(const Fields& fields);

// The part of a head that config.json rotates. Old and new names of the rope's section may both be present; values
// that contradict each other are an error.
std::optional<double> find_rotary_part(const Fields& fields);

// Context that the scaling rule supports, in tokens: YaRN's factor times its original context, if more than `context`.
int scaled_context(const Fields& fields, int context);

}  // namespace lb
