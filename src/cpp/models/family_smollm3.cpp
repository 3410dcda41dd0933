// SmolLM3: Llama without position embedding (NoPE) in every fourth layer.
#include "base/error.h"
#include "models/family.h"

namespace lb {
namespace {

Rotation rotation(bool rotates) { return rotates ? Rotation::kFirst : Rotation::kNone; }

// GGUF files do not say which layers rotate.
void read(const Fields& fields, FamilyConfig& config) {
  const FieldName name{"", {"no_rope_layers"}};
  const size_t n = config.layers.size();
  if (const Json* rotates = fields.hf("no_rope_layers")) {
    const auto& list = rotates->array();
    if (list.size() < n) fields.refuse(name, cat("lists ", list.size(), " layers; the model has ", n));
    for (size_t i = 0; i < n; ++i) config.layers[i].rotation = rotation(list[i].integer() != 0);
  } else {
    const size_t every = fields.is_gguf() ? 4 : fields.count({"", {"no_rope_layer_interval"}}, 4);
    for (size_t i = 0; i < n; ++i) config.layers[i].rotation = rotation((i + 1) % every != 0);
  }
}

}  // namespace

const Family kSmolLm3 = {
    .gguf = "smollm3",
    .hf = {"smollm3"},
    .defaults = {{"rms_norm_eps", 1e-6}, {"max_position_embeddings", 32768}},
    .gguf_pairs = RopePairs::kAdjacent,
    .read = read,
};

}  // namespace lb
