// Mistral (Ministral 3, Devstral Small 2, Mistral Small 3): Llama with YaRN, and queries that grow with the logarithm
// of the position.
#include "base/error.h"
#include "models/family.h"

namespace lb {
namespace {

void read(const Fields& fields, FamilyConfig& config) {
  const FieldName factor{"attention.temperature_scale", {"rope_parameters.llama_4_scaling_beta"}};
  const FieldName period{"rope.scaling.original_context_length", {"rope_parameters.original_max_position_embeddings"}};
  if (const auto found = fields.find_positive(factor)) config.query_scale = {*found, fields.count(period)};
  read_window(fields, config);
}

// The vision tower of Mistral's multimodal checkpoints is not supported.
bool is_vision(std::string_view name, const FamilyConfig&) {
  for (const char* prefix : {"vision_tower.", "multi_modal_projector."})
    if (name.starts_with(prefix) || name.starts_with(cat("model.", prefix))) return true;
  return false;
}

}  // namespace

const Family kMistral3 = {
    .gguf = "mistral3",
    .hf = {"ministral3", "mistral"},
    .defaults = {{"rms_norm_eps", 1e-5}, {"max_position_embeddings", 262144}, {"head_dim", 128}},
    .gguf_pairs = RopePairs::kAdjacent,
    .read = read,
    .skips = is_vision,
};

}  // namespace lb
