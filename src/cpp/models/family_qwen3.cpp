// Qwen3, dense or a mixture: grouped-query attention, per-head norms of q and k, rope over the whole head, pairs half a
// head apart.
#include "models/family.h"
#include "models/rope_angles.h"

namespace lb {
namespace {

std::unique_ptr<Model> make(const ModelFile& file, const Fields& fields, ModelInfo info) {
  read_common(fields, info);
  refuse_partial_rotation(fields);
  info.n_rot = info.head_dim;

  Binder binder(file);
  Weights weights = bind_common(binder, fields, info, HfFix::kNone, "ffn_norm.weight");
  weights.rope = rope_angles(fields, binder, info.n_rot);
  for (int i = 0; i < info.n_layers; ++i) {
    weights.layers[i].mixer = bind_attention(binder, info, i, {.qk_norms = true});
    weights.layers[i].ffn = bind_ffn(binder, info, i);
  }
  return finish(binder, std::move(info), std::move(weights));
}

// Mixtures with dense layers among them are unknown in this family.
void refuse_dense_layers(const Fields& fields) {
  const FieldName step{"", {"decoder_sparse_step"}}, dense{"", {"mlp_only_layers"}};
  if (const Json* value = fields.hf("decoder_sparse_step"); value != nullptr && value->integer() != 1)
    fields.refuse(step, cat("is ", value->integer(), "; supported: 1"));
  if (const Json* value = fields.hf("mlp_only_layers"); value != nullptr && !value->array().empty())
    fields.refuse(dense, "lists dense layers; supported: none");
}

}  // namespace

std::unique_ptr<Model> make_qwen3(const ModelFile& file) {
  constexpr HfDefault kDefaults[] = {{"rms_norm_eps", 1e-6}, {"max_position_embeddings", 32768}, {"head_dim", 128}};
  return make(file, Fields(file, "qwen3", kDefaults), {.architecture = "qwen3"});
}

std::unique_ptr<Model> make_qwen3moe(const ModelFile& file) {
  constexpr HfDefault kDefaults[] = {{"rms_norm_eps", 1e-6},
                                     {"max_position_embeddings", 32768},
                                     {"num_experts", 128},
                                     {"num_experts_per_tok", 8},
                                     {"moe_intermediate_size", 768}};
  const Fields fields(file, "qwen3moe", kDefaults);
  refuse_dense_layers(fields);
  const bool is_normalized = fields.is_gguf() || fields.flag({"", {"norm_topk_prob"}}, false);
  return make(file, fields, {.architecture = "qwen3moe", .experts = read_experts(fields, is_normalized)});
}

}  // namespace lb
