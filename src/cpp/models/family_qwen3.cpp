// Qwen3 (dense): grouped-query attention, per-head norms of q and k, rope over the whole head, pairs half a head apart.
#include "models/family.h"
#include "models/rope_angles.h"

namespace lb {

std::unique_ptr<Model> make_qwen3(const ModelFile& file) {
  constexpr HfDefault kDefaults[] = {{"rms_norm_eps", 1e-6}, {"max_position_embeddings", 32768}, {"head_dim", 128}};
  const Fields fields(file, "qwen3", kDefaults);
  ModelInfo info{.architecture = "qwen3"};
  read_common(fields, info);
  refuse_partial_rotation(fields);
  info.n_rot = info.head_dim;

  Binder binder(file);
  Weights weights = bind_common(binder, fields, info, HfFix::kNone, "ffn_norm.weight");
  weights.rope = rope_angles(fields, binder, info.n_rot);
  for (int i = 0; i < info.n_layers; ++i) {
    weights.layers[i].mixer = bind_attention(binder, info, i, {.qk_norms = true});
    weights.layers[i].ffn = bind_mlp(binder, info, i);
  }
  return finish(binder, std::move(info), std::move(weights));
}

}  // namespace lb
