// Gemma 4: windows in five of six layers, whose heads are smaller and have a rope of their own; norms before and
// after each branch; in the last layers of E2B and E4B no keys and values, and an own input of each token; in 26B-A4B
// experts beside the dense network.
#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "models/family.h"

namespace lb {
namespace {

constexpr int kPeriod = 6;             // the last layer of a period attends to all
constexpr double kRotatedPart = 0.25;  // of the large heads

std::vector<bool> sliding_layers(const Fields& fields, int n) {
  if (auto listed = find_sliding_types(fields, n)) return *std::move(listed);
  const FieldName name{"attention.sliding_window_pattern", {}};
  std::vector<bool> sliding;
  if (const auto list = find_list(fields, name.gguf)) sliding.assign(list->begin(), list->end());
  if (sliding.empty())
    for (int i = 0; i < n; ++i) sliding.push_back((i + 1) % kPeriod != 0 && i + 1 < n);
  if (static_cast<int>(sliding.size()) != n)
    fields.refuse(name, cat("lists ", sliding.size(), " layers; the model has ", n));
  return sliding;
}

// The value of each layer: listed (GGUF), or one for all.
std::vector<int> by_layer(const Fields& fields, const char* key, int n, int otherwise) {
  std::vector<int> values(n, otherwise);
  const auto list = find_list(fields, key);
  if (!list) return values;
  if (static_cast<int>(list->size()) != n)
    fields.refuse({key, {}}, cat("lists ", list->size(), " layers; the model has ", n));
  for (int i = 0; i < n; ++i) values[i] = static_cast<int>(std::clamp<uint64_t>((*list)[i], 1, 1 << 24));
  return values;
}

// Since 5.24 transformers lists what differs from the other layers, instead of the sizes of all full layers:
// per_layer_config = {"05": {"head_dim": 512, "num_key_value_heads": 4}}. False: the file has no such list.
bool read_overrides(const Fields& fields, FamilyConfig& config) {
  const Json* list = fields.hf("per_layer_config");
  if (list == nullptr) return false;
  const int n = config.info.n_layers;
  for (LayerKind& layer : config.layers)
    layer.head_dim = config.info.head_dim, layer.n_kv_heads = config.info.n_kv_heads;
  for (const Json::Member& member : list->members()) {
    int i = -1;
    const char* const end = member.key.data() + member.key.size();
    const auto [parsed, error] = std::from_chars(member.key.data(), end, i);
    LB_CHECK(error == std::errc() && parsed == end && i >= 0 && i < n, kFormat, member.value.where(),
             ": per_layer_config names layer \"", member.key, "\"; the model has ", n, " layers");
    for (const auto& [key, value] : member.value.members()) {
      LB_CHECK(key == "head_dim" || key == "num_key_value_heads", kUnsupported, value.where(),
               ": per_layer_config changes ", key,
               " of a layer, which is not supported; supported: head_dim, num_key_value_heads");
      LB_CHECK(value.integer() >= 1 && value.integer() <= 1 << 16, kFormat, value.where(), ": ", key, " is ",
               value.integer());
      (key == "head_dim" ? config.layers[i].head_dim : config.layers[i].n_kv_heads) = static_cast<int>(value.integer());
    }
  }
  return true;
}

// 26B-A4B has a mixture beside each dense network.
ExpertSizes experts(const Fields& fields) {
  const FieldName name{"expert_count", {"enable_moe_block"}};
  const bool has_experts = fields.is_gguf() ? fields.gguf()->find_uint(fields.gguf_key(name.gguf)).value_or(0) > 0
                                            : fields.flag(name, false);
  if (!has_experts) return {};
  ExpertSizes sizes = read_experts(fields, true, {.used = "top_k_experts"});
  sizes.is_gelu = true;
  return sizes;
}

FeedForward bind_experts(Binder& binder, const ModelInfo& info, int layer) {
  const int h = info.hidden;
  const auto name = [&](const char* gguf, const char* hf) { return layer_tensor(layer, gguf, hf); };
  DenseAndExperts both{.dense = bind_mlp(binder, info, layer),
                       .experts = bind_moe(binder, info, layer, "router.proj.weight", "experts")};
  both.dense.is_gelu = true;
  both.experts.router_norm =
      binder.scaled(name("ffn_gate_inp.scale", "router.scale"), h, 1 / std::sqrt(static_cast<float>(h)));
  both.experts.router_scale = binder.vector(name("ffn_down_exps.scale", "router.per_expert_scale"), info.experts.n);
  both.experts_norm = binder.vector(name("pre_ffw_norm_2.weight", "pre_feedforward_layernorm_2.weight"), h);
  both.dense_post_norm = binder.vector(name("post_ffw_norm_1.weight", "post_feedforward_layernorm_1.weight"), h);
  both.experts_post_norm = binder.vector(name("post_ffw_norm_2.weight", "post_feedforward_layernorm_2.weight"), h);
  return both;
}

// The model was trained with the root in BF16.
float rounded_root(int n) {
  uint32_t bits = std::bit_cast<uint32_t>(std::sqrt(static_cast<float>(n)));
  bits += 0x7fff + (bits >> 16 & 1);
  return std::bit_cast<float>(bits & 0xffff0000u);
}

// Whether rows of an image see each other. GGUF files do not say it: the models without token inputs do.
bool has_whole_images(const Fields& fields, const FamilyConfig& config) {
  if (fields.is_gguf()) return config.token_input_dim == 0;
  const FieldName name{"", {"use_bidirectional_attention"}};
  const Json* kind = fields.hf(name.hf.front());
  if (kind == nullptr || kind->is_null()) return false;
  if (!kind->is_string() || kind->string() != "vision") fields.refuse(name, "must be null or \"vision\"");
  return true;
}

const FieldName kShared{"attention.shared_kv_layers", {"num_kv_shared_layers"}};

// Layers at the end that read the keys and values of an earlier layer.
int shared_layers(const Fields& fields, int n) {
  const Json* shared = fields.hf("num_kv_shared_layers");
  const uint64_t n_shared = fields.is_gguf()    ? fields.gguf()->find_uint(fields.gguf_key(kShared.gguf)).value_or(0)
                            : shared != nullptr ? static_cast<uint64_t>(shared->integer())
                                                : 0;
  if (n_shared >= static_cast<uint64_t>(n)) fields.refuse(kShared, cat("is ", n_shared, " of ", n, " layers"));
  return static_cast<int>(n_shared);
}

void read_layers(const Fields& fields, FamilyConfig& config, int n_shared) {
  ModelInfo& info = config.info;
  const int n = info.n_layers;
  const int window = checked_window(fields, fields.count({"attention.sliding_window", {"sliding_window"}}, 512));
  // GGUF names the large heads first, config.json the small ones.
  const int small = fields.is_gguf() ? fields.count({"attention.key_length_swa", {}}, info.head_dim) : info.head_dim;
  const int large = fields.is_gguf() ? info.head_dim : fields.count({"", {"global_head_dim"}}, 512);
  const bool shares_values = fields.flag({"", {"attention_k_eq_v"}}, false);
  const std::vector<int> heads = by_layer(fields, "attention.head_count_kv", n, info.n_kv_heads);
  const std::vector<int> ffn = by_layer(fields, "feed_forward_length", n, info.ffn);
  const std::vector<bool> sliding = sliding_layers(fields, n);
  const bool is_wide = fields.flag({"", {"use_double_wide_mlp"}}, false);
  const bool has_overrides = read_overrides(fields, config);

  const int first_shared = n - n_shared;
  int source[2] = {-1, -1};   // the last layer of its own keys and values: full, sliding
  int head_dims[2] = {0, 0};  // of the full and of the sliding layers, which each share a table of angles
  for (int i = 0; i < n; ++i) {
    LayerKind& layer = config.layers[i];
    layer.window = sliding[i] ? window : 0;
    layer.rotation = sliding[i] ? Rotation::kSecond : Rotation::kFirst;
    if (!has_overrides) {
      layer.head_dim = sliding[i] ? small : large;
      layer.n_kv_heads = heads[i];
      if (!sliding[i] && shares_values)
        layer.n_kv_heads = fields.count({"", {"num_global_key_value_heads"}}, info.n_kv_heads);
    }
    int& head_dim = head_dims[sliding[i]];
    if (head_dim == 0) head_dim = layer.head_dim;
    if (layer.head_dim != head_dim || head_dim > 512 || head_dim % 8 != 0)
      fields.refuse({"attention.key_length", {"head_dim"}},
                    cat("is ", layer.head_dim, " in layer ", i,
                        "; supported: multiples of 8 up to 512, the same in all layers of a kind"));
    if (info.n_heads % layer.n_kv_heads != 0)
      fields.refuse({"attention.head_count_kv", {"num_key_value_heads"}},
                    cat("gives ", layer.n_kv_heads, " of layer ", i, ", which do not divide ", info.n_heads));
    layer.ffn = i >= first_shared && is_wide ? 2 * ffn[i] : ffn[i];
    layer.values_are_keys = !sliding[i] && shares_values;
    if (i < first_shared) {
      source[sliding[i]] = i;
    } else {
      layer.kv_from = source[sliding[i]];
      if (layer.kv_from < 0) fields.refuse(kShared, cat("leaves layer ", i, " without keys and values"));
      layer.n_kv_heads = config.layers[layer.kv_from].n_kv_heads;
    }
  }
  info.head_dim = info.n_rot = head_dims[0] > 0 ? head_dims[0] : large;
}

void read(const Fields& fields, FamilyConfig& config) {
  ModelInfo& info = config.info;
  read_layers(fields, config, shared_layers(fields, info.n_layers));
  info.embedding_scale = rounded_root(info.hidden);
  info.logit_cap = fields.find_positive({"final_logit_softcapping", {"final_logit_softcapping"}}).value_or(0);
  info.images = ImagePositions::kSequence;
  const Json* dim = fields.hf("hidden_size_per_layer_input");
  config.token_input_dim =
      fields.is_gguf()
          ? static_cast<int>(std::min<uint64_t>(
                fields.gguf()->find_uint(fields.gguf_key("embedding_length_per_layer_input")).value_or(0), 1 << 16))
          : static_cast<int>(std::clamp<int64_t>(dim == nullptr ? 256 : dim->integer(), 0, 1 << 16));
  info.images_are_whole = has_whole_images(fields, config);
}

RopeAngles angles(double theta, int n_rot, int n_rotated) {
  RopeAngles made;
  for (int i = 0; i < n_rot / 2; ++i)
    made.inv_freq.push_back(i < n_rotated / 2 ? static_cast<float>(std::pow(theta, -2.0 * i / n_rot)) : 0.0f);
  made.axis.assign(n_rot / 2, 0);
  return made;
}

void bind_ropes(const Fields& fields, Binder& binder, const FamilyConfig& config, Weights& weights) {
  const auto theta = [&](const char* gguf, const char* hf, double otherwise) {
    return fields.find_positive({gguf, {hf}}).value_or(static_cast<float>(otherwise));
  };
  const int large = config.info.head_dim;
  int small = large;
  for (const LayerKind& layer : config.layers) small = std::min(small, layer.head_dim);
  const double part =
      fields.find_positive({"", {"rope_parameters.full_attention.partial_rotary_factor"}}).value_or(kRotatedPart);
  const bool has_factors = fields.is_gguf();  // which are huge for the pairs that do not rotate
  weights.rope = angles(theta("rope.freq_base", "rope_parameters.full_attention.rope_theta", 1e6), large,
                        has_factors ? large : 2 * static_cast<int>(large * std::min(part, 1.0) / 2));
  if (has_factors) {
    const float* divide = binder.vector({"rope_freqs.weight", ""}, large / 2);
    for (int i = 0; i < large / 2; ++i) {
      LB_CHECK(divide[i] > 0, kFormat, fields.path(), ": rope_freqs.weight: factor ", i, " must be positive, found ",
               divide[i]);
      weights.rope.inv_freq[i] /= divide[i];
    }
  }
  weights.second_rope =
      angles(theta("rope.freq_base_swa", "rope_parameters.sliding_attention.rope_theta", 1e4), small, small);
}

// Towers of images and sound.
bool is_skipped(std::string_view name, const FamilyConfig& config) {
  for (const char* prefix : {"model.vision_tower.", "model.embed_vision.", "model.audio_tower.", "model.embed_audio.",
                             "model.vision_embedder."})
    if (name.starts_with(prefix)) return true;
  // Some checkpoints keep the projections of layers that read another layer's keys and values.
  for (size_t i = 0; i < config.layers.size(); ++i)
    if (config.layers[i].kv_from >= 0)
      for (const char* unused : {"k_proj.", "v_proj.", "k_norm.", "v_norm."})
        if (name.find(cat("layers.", i, ".self_attn.", unused)) != std::string_view::npos) return true;
  return false;
}

// All layers read keys and values of the target, so none reads them from another layer of its own model.
void read_assistant(const Fields& fields, FamilyConfig& config) { read_layers(fields, config, 0); }

// Centroids of the vocabulary, which narrow the head to a part of it.
bool is_skipped_in_assistant(std::string_view name, const FamilyConfig&) {
  return name.starts_with("masked_embedding.") || name.starts_with("masked_embd_");
}

}  // namespace

const Family kGemma4 = {
    .gguf = "gemma4",
    .hf = {"gemma4_text", "gemma4_unified_text"},
    .defaults = {{"rms_norm_eps", 1e-6}, {"max_position_embeddings", 131072}, {"head_dim", 256}},
    .allowed = {.own_rope = true, .layers_differ = true, .activation = "gelu_pytorch_tanh"},
    .attention = {.qk_norms = true, .normalises_values = true, .scale = 1, .may_lack_values = true},
    .ffn_norm = {.hf = "pre_feedforward_layernorm.weight"},
    .has_post_norms = true,
    .experts = experts,
    .read = read,
    .bind_ropes = bind_ropes,
    .bind_experts = bind_experts,
    .skips = is_skipped,
};

// The assistant's network (gemma4_assistant.cpp): no model by itself.
const Family kGemma4Assistant = {
    .gguf = "gemma4-assistant",
    .hf = {},
    .defaults = kGemma4.defaults,
    .allowed = kGemma4.allowed,
    .attention = kGemma4.attention,
    .ffn_norm = kGemma4.ffn_norm,
    .has_post_norms = true,
    .read = read_assistant,
    .bind_ropes = bind_ropes,
    .skips = is_skipped_in_assistant,
};

}  // namespace lb
