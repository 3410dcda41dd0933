// Llama (and SmolLM2): grouped-query attention without norms of q and k. Rope pairs are adjacent in GGUF, whose
// converter permutes the rows of q and k. In safetensors they are half a head apart.
#include "models/family.h"

namespace lb {
namespace {

void read(const Fields& fields, FamilyConfig&) { refuse_partial_rotation(fields); }

}  // namespace

const Family kLlama = {
    .gguf = "llama",
    .hf = {"llama"},
    .defaults = {{"rms_norm_eps", 1e-6}, {"max_position_embeddings", 2048}},
    .gguf_pairs = RopePairs::kAdjacent,
    .read = read,
};

}  // namespace lb
