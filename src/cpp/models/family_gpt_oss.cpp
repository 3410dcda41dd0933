// gpt-oss: attention with biases and sinks, windows in every other layer, and a mixture of clamped SwiGLUs with biases
// in every layer. In safetensors an expert's rows of gate and up alternate.
#include <string>

#include "models/family.h"

namespace lb {
namespace {

// GGUF: gate and up apart, or an expert's rows of gate and then its rows of up.
void bind_gguf_biases(Binder& binder, int layer, int hidden, MoeBlock& block) {
  const int n = block.sizes.n, f = block.sizes.ffn;
  const auto name = [&](const char* kind) { return layer_tensor(layer, cat("ffn_", kind, ".bias").c_str(), ""); };
  block.biases.router = binder.vector(name("gate_inp"), n);
  if (block.up.data == nullptr) {
    block.biases.gate = binder.columns(name("gate_up_exps"), n, 2 * f, f, 0, 1);
    block.biases.up = binder.columns(name("gate_up_exps"), n, 2 * f, f, f, 1);
  } else {
    block.biases.gate = binder.array(name("gate_exps"), {n, f});
    block.biases.up = binder.array(name("up_exps"), {n, f});
  }
  block.biases.down = binder.array(name("down_exps"), {n, hidden});
}

MoeBlock bind_hf_experts(Binder& binder, const ModelInfo& info, int layer) {
  const int h = info.hidden, n = info.experts.n, f = info.experts.ffn;
  const auto name = [&](const char* hf) { return layer_tensor(layer, "", cat("mlp.", hf).c_str()); };
  MoeBlock block{.sizes = info.experts};
  block.router = binder.router(name("router.weight"), n, h);
  block.gate = binder.expert_blocks(name("experts.gate_up_proj"), n, 2 * f, h, ExpertRowOrder::kByTurns);
  block.down = binder.expert_blocks(name("experts.down_proj"), n, h, f, ExpertRowOrder::kPlain);
  block.biases = {.router = binder.vector(name("router.bias"), n),
                  .gate = binder.columns(name("experts.gate_up_proj_bias"), n, 2 * f, f, 0, 2),
                  .up = binder.columns(name("experts.gate_up_proj_bias"), n, 2 * f, f, 1, 2),
                  .down = binder.array(name("experts.down_proj_bias"), {n, h})};
  return block;
}

FeedForward bind_experts(Binder& binder, const ModelInfo& info, int layer) {
  if (!binder.is_gguf()) return bind_hf_experts(binder, info, layer);
  MoeBlock block = std::get<MoeBlock>(bind_ffn(binder, info, layer));
  bind_gguf_biases(binder, layer, info.hidden, block);
  return block;
}

ExpertSizes experts(const Fields& fields) {
  ExpertSizes sizes = read_experts(fields, true, {"num_local_experts", "intermediate_size"});
  sizes.limit = fields.positive({"", {"swiglu_limit"}}, 7);
  return sizes;
}

void read(const Fields& fields, FamilyConfig& config) {
  refuse_partial_rotation(fields);
  read_windows(fields, config.layers, 2);
}

}  // namespace

const Family kGptOss = {
    .gguf = "gpt-oss",
    .hf = {"gpt_oss"},
    .defaults = {{"rms_norm_eps", 1e-5},
                 {"max_position_embeddings", 131072},
                 {"num_local_experts", 128},
                 {"num_experts_per_tok", 4},
                 {"intermediate_size", 2880},
                 {"sliding_window", 128},
                 {"swiglu_limit", 7},
                 {"head_dim", 64}},
    .allowed = {.biases = true},
    .attention = {.has_biases = true, .has_sinks = true},
    .gguf_yarn = YarnRange::kExact,
    .ffn_norm = {.gguf = "post_attention_norm.weight"},
    .experts = experts,
    .read = read,
    .bind_experts = bind_experts,
};

}  // namespace lb
