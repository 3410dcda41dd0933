// make_family: from a family's table and a file to a model.
#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.h"
#include "models/family.h"

namespace lb {
namespace {

Mixer bind_mixer(Binder& binder, const Family& family, const FamilyConfig& config, int i) {
  const LayerKind& layer = config.layers[i];
  if (layer.delta_net) return bind_delta_net(binder, config.info, *layer.delta_net, i);
  AttentionKind kind = family.attention;
  if (binder.is_gguf()) kind.pairs = family.gguf_pairs;
  kind.values_are_keys = layer.values_are_keys;
  kind.has_kv = layer.kv_from < 0;
  ModelInfo info = config.info;
  if (layer.head_dim > 0) info.head_dim = layer.head_dim;
  if (layer.n_kv_heads > 0) info.n_kv_heads = layer.n_kv_heads;
  AttentionBlock block = bind_attention(binder, info, i, kind);
  if (layer.head_dim > 0) block.n_rot = layer.head_dim;
  block.window = layer.window;
  block.kv_from = layer.kv_from;
  block.rotation = block.q_rotation = layer.rotation;
  if (config.query_scale.factor > 0 && layer.rotation == Rotation::kFirst) block.q_rotation = Rotation::kSecond;
  return block;
}

// The number of pairs that a rope rotates: those before the frequencies that are 0, or too small to change any value.
int rotated_pairs(const RopeAngles& rope) {
  constexpr float kNone = 1e-15f;  // GGUF divides frequencies by 1e30
  int n = static_cast<int>(rope.inv_freq.size());
  while (n > 0 && rope.inv_freq[n - 1] < kNone) --n;
  return n;
}

const RopeAngles& rope_of(const AttentionBlock& block, const Weights& weights) {
  return block.rotation == Rotation::kSecond ? weights.second_rope : weights.rope;
}

// Where one matrix makes keys and values, and Rope leaves most of a head as it is: the layer stores its values as parts
// of its keys.
void share_keys(AttentionBlock& block, const Weights& weights) {
  const RopeAngles& rope = rope_of(block, weights);
  const bool is_shared = block.has_kv() && block.v.name == block.k.name && block.v_norm != nullptr &&
                         block.k_norm != nullptr && block.pairs == RopePairs::kHalves &&
                         block.rotation != Rotation::kNone && block.q_rotation == block.rotation &&
                         block.n_rot == block.head_dim && rope.scale == 1 && !block.gated;
  const int n = is_shared ? rotated_pairs(rope) : 0;
  if (n > 0 && 4 * n <= block.head_dim && key_tail(block.head_dim, 2 * n) <= kMaxKeyTail) block.n_tail_pairs = n;
}

// Queries for a layer that stores values as parts of its keys: they take over the weight of the keys' norm.
void match_keys(Binder& binder, AttentionBlock& block, const AttentionBlock& owner, const Weights& weights) {
  block.n_tail_pairs = owner.n_tail_pairs;
  if (owner.n_tail_pairs == 0) return;
  const int n = rotated_pairs(rope_of(block, weights));
  LB_CHECK(n <= owner.n_tail_pairs, kUnsupported, binder.path(), ": a layer rotates ", n,
           " pairs of its queries; the keys that it reads have ", owner.n_tail_pairs);
  float* const q_norm = binder.copy_of(block.q_norm);
  for (int i = 0, half = block.head_dim / 2; i < block.head_dim; ++i)
    if (i % half >= owner.n_tail_pairs) q_norm[i] *= owner.k_norm[i];
}

FeedForward bind_feed_forward(Binder& binder, const Family& family, const FamilyConfig& config, int i) {
  ModelInfo info = config.info;
  if (config.layers[i].ffn > 0) info.ffn = config.layers[i].ffn;
  if (family.bind_experts != nullptr && info.experts.n > 0) return family.bind_experts(binder, info, i);
  FeedForward ffn = family.joins_gate_and_up ? bind_joined_mlp(binder, info, i) : bind_ffn(binder, info, i);
  if (auto* mlp = std::get_if<SwiGluMlp>(&ffn)) mlp->is_gelu = family.has_gelu();
  return ffn;
}

// The norms of the branches, the scale of the output and the token input.
void bind_post_norms(Binder& binder, const FamilyConfig& config, int i, Layer& layer) {
  const int h = config.info.hidden, dim = config.token_input_dim;
  const auto name = [&](const char* gguf, const char* hf) { return layer_tensor(i, gguf, hf); };
  layer.mixer_post_norm = binder.vector(name("post_attention_norm.weight", "post_attention_layernorm.weight"), h);
  layer.ffn_post_norm = binder.vector(name("post_ffw_norm.weight", "post_feedforward_layernorm.weight"), h);
  layer.scale = *binder.vector(name("layer_output_scale.weight", "layer_scalar"), 1);
  if (dim == 0) return;
  layer.token_input =
      TokenInput{binder.matrix(name("inp_gate.weight", "per_layer_input_gate.weight"), dim, h, Split::none()),
                 binder.matrix(name("proj.weight", "per_layer_projection.weight"), h, dim, Split::none()),
                 binder.vector(name("post_norm.weight", "post_per_layer_input_norm.weight"), h)};
}

TokenInputs bind_token_inputs(Binder& binder, const FamilyConfig& config) {
  const int dim = config.token_input_dim, n = config.info.n_layers * dim;
  const TensorName table{"per_layer_token_embd.weight", "embed_tokens_per_layer.weight"};
  return {.table = binder.matrix(table, binder.height(table), n, Split::none()),
          .projection = binder.matrix({"per_layer_model_proj.weight", "per_layer_model_projection.weight"}, n,
                                      config.info.hidden, Split::none()),
          .norm = binder.vector({"per_layer_proj_norm.weight", "per_layer_projection_norm.weight"}, dim),
          .dim = dim};
}

const FieldName kWindow{"attention.sliding_window", {"sliding_window"}};

}  // namespace

// A deeper tree would need a mask of the append's own rows (ops/attention.h).
int checked_window(const Fields& fields, int window) {
  if (window < kMaxTree) fields.refuse(kWindow, cat("is ", window, "; at least ", kMaxTree, " are supported"));
  return window;
}

std::optional<std::vector<bool>> find_sliding_types(const Fields& fields, size_t n_layers) {
  const Json* list = fields.hf("layer_types");
  if (list == nullptr) return std::nullopt;
  std::vector<bool> sliding;
  for (const Json& type : list->array()) {
    sliding.push_back(type.string() == "sliding_attention");
    LB_CHECK(sliding.back() || type.string() == "full_attention", kUnsupported, type.where(), ": layer type \"",
             type.string(), "\" is not supported; supported: full_attention, sliding_attention");
  }
  if (sliding.size() != n_layers)
    fields.refuse({"", {"layer_types"}}, cat("lists ", sliding.size(), " layers; the model has ", n_layers));
  return sliding;
}

void read_windows(const Fields& fields, std::span<LayerKind> layers, int period) {
  const int window = checked_window(fields, fields.count(kWindow));
  const auto sliding = find_sliding_types(fields, layers.size());
  for (size_t i = 0; i < layers.size(); ++i)
    layers[i].window = (sliding ? (*sliding)[i] : (i + 1) % period != 0) ? window : 0;
}

void read_window(const Fields& fields, FamilyConfig& config) {
  // Files may write 0.
  const bool is_given = fields.is_gguf() ? fields.gguf()->find_uint(fields.gguf_key(kWindow.gguf)).value_or(0) > 0
                                         : fields.hf(kWindow.hf.front()) != nullptr;
  if (!is_given) return;
  const int window = fields.count(kWindow);
  if (window >= config.info.max_context) return;
  for (LayerKind& layer : config.layers) layer.window = checked_window(fields, window);
}

std::optional<std::vector<uint64_t>> find_list(const Fields& fields, const char* gguf) {
  const GgufEntry* entry = fields.is_gguf() ? fields.gguf()->find(fields.gguf_key(gguf)) : nullptr;
  if (entry == nullptr || entry->value.type() != GgufType::kArray) return std::nullopt;
  return fields.gguf()->uint_array(entry->key);
}

int rotated_dims(const Fields& fields, int head_dim, double default_part) {
  const FieldName name{"rope.dimension_count", {"partial_rotary_factor"}};
  const double part = fields.is_gguf() ? default_part : find_rotary_part(fields).value_or(default_part);
  const int given = static_cast<int>(head_dim * std::min(part, 2.0));
  const int n_rot = fields.is_gguf() ? fields.count(name, given) : given;
  if (n_rot < 2 || n_rot % 2 != 0 || n_rot > head_dim)
    fields.refuse(name, cat("gives ", n_rot, " rotated values; must be even and at most the head size ", head_dim));
  return n_rot;
}

FamilyConfig read_config(const Family& family, const Fields& fields) {
  FamilyConfig config{.info = {.architecture = family.gguf}};
  if (family.experts != nullptr) config.info.experts = family.experts(fields);
  read_common(fields, config.info, family.allowed);
  // A GGUF file of any family may rotate only a part of each head.
  config.info.n_rot = fields.is_gguf() ? rotated_dims(fields, config.info.head_dim) : config.info.head_dim;
  config.layers.resize(config.info.n_layers);
  if (family.read != nullptr) family.read(fields, config);
  return config;
}

void bind_layers(Binder& binder, const Family& family, const FamilyConfig& config, Weights& weights,
                 const Model* target) {
  for (int i = 0; i < config.info.n_layers; ++i) {
    weights.layers[i].mixer = bind_mixer(binder, family, config, i);
    if (auto* const block = std::get_if<AttentionBlock>(&weights.layers[i].mixer)) {
      share_keys(*block, weights);
      const int from = block->has_kv() ? i : block->kv_from;
      match_keys(
          binder, *block,
          target != nullptr ? target->attention_block(from) : std::get<AttentionBlock>(weights.layers[from].mixer),
          weights);
    }
    weights.layers[i].ffn = bind_feed_forward(binder, family, config, i);
    if (family.has_post_norms) bind_post_norms(binder, config, i, weights.layers[i]);
  }
}

std::unique_ptr<Model> make_family(const Family& family, const ModelFile& file) {
  const Fields fields(file, family.gguf, family.defaults);
  FamilyConfig config = read_config(family, fields);
  if (family.check != nullptr) family.check(file, config);
  Binder binder(file);
  ModelInfo& info = config.info;
  Weights weights = bind_common(binder, fields, info, family.norms, family.ffn_norm);
  if (family.bind_ropes != nullptr)
    family.bind_ropes(fields, binder, config, weights);
  else
    weights.rope = rope_angles(fields, binder, info.n_rot, config.mrope_sections, family.gguf_yarn);
  if (config.token_input_dim > 0) weights.token_inputs = bind_token_inputs(binder, config);
  if (config.query_scale.factor > 0)
    weights.second_rope = query_angles(weights.rope, config.query_scale, info.max_context);
  bind_layers(binder, family, config, weights);
  if (family.skips != nullptr) binder.skip([&](std::string_view name) { return family.skips(name, config); });
  // Old checkpoints also store the rope frequencies, which follow from the configuration. Quantised checkpoints may
  // have scales of an FP8 KV cache, which this engine does not support.
  binder.skip([](std::string_view name) {
    return std::ranges::any_of(std::array{".rotary_emb.inv_freq", ".k_scale", ".v_scale"},
                               [&](const char* end) { return name.ends_with(end); });
  });
  binder.finish();
  weights.copies = binder.take_copies();
  return std::make_unique<Model>(std::move(info), std::move(weights));
}

}  // namespace lb
