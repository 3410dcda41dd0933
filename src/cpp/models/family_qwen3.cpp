// Qwen3, dense or a mixture: grouped-query attention, per-head norms of q and k, rope over the whole head, pairs half a
// head apart.
#include "models/family.h"

namespace lb {
namespace {

ExpertSizes experts(const Fields& fields) {
  return read_experts(fields, fields.is_gguf() || fields.flag({"", {"norm_topk_prob"}}, false));
}

void read(const Fields& fields, FamilyConfig&) { refuse_partial_rotation(fields); }

// Mixtures with dense layers among them are unknown in this family.
void read_mixture(const Fields& fields, FamilyConfig& config) {
  read(fields, config);
  const FieldName step{"", {"decoder_sparse_step"}}, dense{"", {"mlp_only_layers"}};
  if (const Json* value = fields.hf("decoder_sparse_step"); value != nullptr && value->integer() != 1)
    fields.refuse(step, cat("is ", value->integer(), "; supported: 1"));
  if (const Json* value = fields.hf("mlp_only_layers"); value != nullptr && !value->array().empty())
    fields.refuse(dense, "lists dense layers; supported: none");
}

}  // namespace

const Family kQwen3 = {
    .gguf = "qwen3",
    .hf = {"qwen3"},
    .defaults = {{"rms_norm_eps", 1e-6}, {"max_position_embeddings", 32768}, {"head_dim", 128}},
    .attention = {.qk_norms = true},
    .read = read,
};

const Family kQwen3Moe = {
    .gguf = "qwen3moe",
    .hf = {"qwen3_moe"},
    .defaults = {{"rms_norm_eps", 1e-6},
                 {"max_position_embeddings", 32768},
                 {"num_experts", 128},
                 {"num_experts_per_tok", 8},
                 {"moe_intermediate_size", 768}},
    .attention = {.qk_norms = true},
    .experts = experts,
    .read = read_mixture,
};

}  // namespace lb
