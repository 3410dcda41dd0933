// gpt-oss: attention with biases and sinks, windows in every other layer, and a mixture of clamped SwiGLUs with biases
// in every layer. In safetensors an expert's rows of gate and up alternate.
#include <string>

#include "base/error.h"
#include "models/family.h"
#include "models/rope_angles.h"

namespace lb {
namespace {

// Windows of the layers, in tokens; 0: the layer attends to all.
std::vector<int> read_windows(const Fields& fields, int n_layers) {
  const FieldName name{"attention.sliding_window", {"sliding_window"}}, types{"", {"layer_types"}};
  const int window = fields.count(name);
  // A deeper tree would need a mask of the append's own rows (ops/attention.h).
  if (window < kMaxTree) fields.refuse(name, cat("is ", window, "; at least ", kMaxTree, " are supported"));
  std::vector<int> windows;
  if (const Json* list = fields.hf("layer_types")) {
    for (const Json& type : list->array()) {
      const bool is_sliding = type.string() == "sliding_attention";
      LB_CHECK(is_sliding || type.string() == "full_attention", kUnsupported, type.where(), ": layer type \"",
               type.string(), "\" is not supported; supported: full_attention, sliding_attention");
      windows.push_back(is_sliding ? window : 0);
    }
    if (static_cast<int>(windows.size()) != n_layers)
      fields.refuse(types, cat("lists ", windows.size(), " layers; the model has ", n_layers));
  } else {
    for (int i = 0; i < n_layers; ++i) windows.push_back(i % 2 == 0 ? window : 0);
  }
  return windows;
}

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

}  // namespace

std::unique_ptr<Model> make_gpt_oss(const ModelFile& file) {
  constexpr HfDefault kDefaults[] = {{"rms_norm_eps", 1e-5},      {"max_position_embeddings", 131072},
                                     {"num_local_experts", 128},  {"num_experts_per_tok", 4},
                                     {"intermediate_size", 2880}, {"sliding_window", 128},
                                     {"swiglu_limit", 7},         {"head_dim", 64}};
  const Fields fields(file, "gpt-oss", kDefaults);
  ModelInfo info{.architecture = "gpt-oss",
                 .experts = read_experts(fields, true, {"num_local_experts", "intermediate_size"})};
  info.experts.limit = fields.positive({"", {"swiglu_limit"}}, 7);
  read_common(fields, info, Biases::kAttention);
  refuse_partial_rotation(fields);
  info.n_rot = info.head_dim;
  const std::vector<int> windows = read_windows(fields, info.n_layers);

  Binder binder(file);
  Weights weights = bind_common(binder, fields, info, HfFix::kNone, "post_attention_norm.weight");
  weights.rope = rope_angles(fields, binder, info.n_rot, {}, YarnRange::kExact);
  for (int i = 0; i < info.n_layers; ++i) {
    AttentionBlock attention = bind_attention(binder, info, i, {.has_biases = true, .has_sinks = true});
    attention.window = windows[i];
    weights.layers[i].mixer = attention;
    MoeBlock block;
    if (binder.is_gguf()) {
      block = std::get<MoeBlock>(bind_ffn(binder, info, i));
      bind_gguf_biases(binder, i, info.hidden, block);
    } else {
      block = bind_hf_experts(binder, info, i);
    }
    weights.layers[i].ffn = std::move(block);
  }
  return finish(binder, std::move(info), std::move(weights));
}

}  // namespace lb
