// Llama (and SmolLM2): grouped-query attention without norms of q and k. Rope pairs are adjacent in GGUF, whose
// converter permutes the rows of q and k. In safetensors they are half a head apart.
#include "models/family.h"
#include "models/rope_angles.h"

namespace lb {

std::unique_ptr<Model> make_llama(const ModelFile& file) {
  constexpr HfDefault kDefaults[] = {{"rms_norm_eps", 1e-6}, {"max_position_embeddings", 2048}};
  const Fields fields(file, "llama", kDefaults);
  ModelInfo info{.architecture = "llama"};
  read_common(fields, info);
  refuse_partial_rotation(fields);
  info.n_rot = fields.count({"rope.dimension_count", {}}, info.head_dim);
  if (info.n_rot % 2 != 0 || info.n_rot > info.head_dim)
    fields.refuse({"rope.dimension_count", {}},
                  cat("is ", info.n_rot, "; must be even and at most the head size ", info.head_dim));

  Binder binder(file);
  Weights weights = bind_common(binder, fields, info, HfFix::kNone, "ffn_norm.weight");
  weights.rope = rope_angles(fields, binder, info.n_rot);
  const RopePairs pairs = fields.is_gguf() ? RopePairs::kAdjacent : RopePairs::kHalves;
  for (int i = 0; i < info.n_layers; ++i) {
    weights.layers[i].mixer = bind_attention(binder, info, i, {.pairs = pairs});
    weights.layers[i].ffn = bind_ffn(binder, info, i);
  }
  return finish(binder, std::move(info), std::move(weights));
}

}  // namespace lb
