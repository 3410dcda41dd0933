// Qwen3.5 text, dense or a mixture: three Gated DeltaNet layers per gated full-attention layer, rope over a quarter of
// the head, zero-centred norms. Prediction blocks (mtp.cpp) and the vision tower are skipped.
#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "models/family_qwen35.h"
#include "models/rope_angles.h"

namespace lb {
namespace {

constexpr const char* kGgufRecurrent = "attention.recurrent_layers";

std::vector<bool> recurrent_layers(const Fields& fields, int n_layers) {
  std::vector<bool> recurrent;
  if (const Json* types = fields.hf("layer_types")) {
    for (const Json& type : types->array()) {
      const bool linear = type.string() == "linear_attention";
      LB_CHECK(linear || type.string() == "full_attention", kUnsupported, type.where(), ": layer type \"",
               type.string(), "\" is not supported; supported: linear_attention, full_attention");
      recurrent.push_back(linear);
    }
  } else if (fields.is_gguf()) {
    if (const auto flags = fields.gguf()->find_uint_array(fields.gguf_key(kGgufRecurrent)))
      recurrent.assign(flags->begin(), flags->end());
  }
  const FieldName list{kGgufRecurrent, {"layer_types"}};
  if (recurrent.empty()) {
    const int every = fields.count({"full_attention_interval", {"full_attention_interval"}}, 4);
    for (int i = 0; i < n_layers; ++i) recurrent.push_back((i + 1) % every != 0);
  }
  if (static_cast<int>(recurrent.size()) < n_layers)
    fields.refuse(list, cat("lists ", recurrent.size(), " layers; the model has ", n_layers));
  recurrent.resize(n_layers);  // drop the entries of prediction blocks
  return recurrent;
}

std::vector<int> mrope_sections(const Fields& fields) {
  std::vector<int> sections;
  if (fields.is_gguf()) {
    for (const char* key : {"rope.dimension_sections", "rope.mrope_section", "mrope_sections"})
      if (const auto values = fields.gguf()->find_uint_array(fields.gguf_key(key)); values && sections.empty())
        for (uint64_t value : *values) sections.push_back(static_cast<int>(std::min<uint64_t>(value, 1 << 16)));
  } else {
    for (const char* path : {"rope_parameters.mrope_section", "rope_scaling.mrope_section"})
      if (const Json* values = fields.hf(path); values != nullptr && sections.empty())
        for (const Json& value : values->array())
          sections.push_back(static_cast<int>(std::clamp<int64_t>(value.integer(), 0, 1 << 16)));
  }
  if (sections.empty()) sections = {11, 11, 10};
  if (sections.size() < 3)
    fields.refuse({"rope.dimension_sections", {"rope_parameters.mrope_section"}}, "must list three sections");
  sections.resize(3);
  return sections;
}

int rotary_dims(const Fields& fields, int head_dim) {
  const FieldName name{"rope.dimension_count", {"rope_parameters.partial_rotary_factor"}};
  const int n_rot = fields.is_gguf()
                        ? fields.count(name, head_dim / 4)
                        : static_cast<int>(head_dim * std::min(find_rotary_part(fields).value_or(0.25), 2.0));
  if (n_rot < 2 || n_rot % 2 != 0 || n_rot > head_dim)
    fields.refuse(name, cat("gives ", n_rot, " rotated values; must be even and at most the head size ", head_dim));
  return n_rot;
}

RecurrentShape delta_shape(const Fields& fields) {
  const FieldName value_heads{"ssm.time_step_rank", {"linear_num_value_heads"}};
  RecurrentShape r;
  r.n_k_heads = fields.count({"ssm.group_count", {"linear_num_key_heads"}});
  r.n_v_heads = fields.count(value_heads);
  r.dk = fields.count({"ssm.state_size", {"linear_key_head_dim"}});
  r.dv = r.dk;
  if (fields.is_gguf()) {
    const FieldName inner{"ssm.inner_size", {}};
    if (fields.count(inner) != static_cast<int64_t>(r.n_v_heads) * r.dv)
      fields.refuse(inner, cat("must be ", r.n_v_heads, " value heads of ", r.dv, ", found ", fields.count(inner)));
  } else {
    r.dv = fields.count({"", {"linear_value_head_dim"}});
  }
  r.n_taps = fields.count({"ssm.conv_kernel", {"linear_conv_kernel_dim"}});
  r.order = fields.is_gguf() ? HeadOrder::kTiled : HeadOrder::kGrouped;
  if (r.n_v_heads % r.n_k_heads != 0)
    fields.refuse(value_heads, cat("is ", r.n_v_heads, ", not a multiple of the ", r.n_k_heads, " key heads"));
  if (r.dk % 8 != 0 || r.dv % 8 != 0 || r.dk > 512 || r.dv > 512)
    fields.refuse({"ssm.state_size", {"linear_key_head_dim"}},
                  cat("is ", r.dk, "; supported: multiples of 8 up to 512"));
  if (r.n_taps < 2 || r.n_taps > 8)
    fields.refuse({"ssm.conv_kernel", {"linear_conv_kernel_dim"}}, cat("is ", r.n_taps, "; supported: 2 to 8"));
  return r;
}

// Refuses layouts that only older versions of Ollama's converter wrote, recognised by their keys.
void refuse_old_layouts(const Fields& fields) {
  if (!fields.is_gguf()) return;
  const FieldName order{"ssm.v_head_reordered", {}}, interleaved{"rope.mrope_interleaved", {}};
  for (const FieldName& name : {order, interleaved})
    if (!fields.flag(name, true)) fields.refuse(name, "is false; convert the model again with a current converter");
}

}  // namespace

Fields qwen35_fields(const ModelFile& file, std::string_view architecture) {
  if (architecture == kQwen35Moe) return Fields(file, architecture, kQwen35MoeDefaults);
  return Fields(file, architecture, kQwen35Defaults);
}

Qwen35Config read_qwen35(const Fields& fields) {
  Qwen35Config config;
  config.info.architecture = fields.architecture();
  if (config.info.architecture == kQwen35Moe) config.info.experts = read_experts(fields, true);
  read_common(fields, config.info);
  refuse_old_layouts(fields);
  const FieldName mtp{"nextn_predict_layers", {}};
  if (fields.is_gguf()) {
    // block_count includes these blocks, which come last. find_count() would refuse zero.
    const uint64_t extra = fields.gguf()->find_uint(fields.gguf_key(mtp.gguf)).value_or(0);
    if (extra >= static_cast<uint64_t>(config.info.n_layers))
      fields.refuse(mtp, cat("is ", extra, " of ", config.info.n_layers, " blocks"));
    config.n_prediction_blocks = static_cast<int>(extra);
    config.info.n_layers -= config.n_prediction_blocks;
  }
  config.recurrent = recurrent_layers(fields, config.info.n_layers);
  config.mrope_sections = mrope_sections(fields);
  config.info.n_rot = rotary_dims(fields, config.info.head_dim);
  config.delta = delta_shape(fields);
  return config;
}

namespace {

DeltaNetBlock bind_delta_net(Binder& binder, const Qwen35Config& config, int i) {
  const RecurrentShape& r = config.delta;
  const int h = config.info.hidden, values = r.n_v_heads * r.dv;
  // A shard gets whole key heads with their value heads and recurrent states.
  const int shared = r.n_v_heads / r.n_k_heads;
  const auto values_of = [&](int unit) {
    return SplitSection{r.n_k_heads, shared, unit, r.order == HeadOrder::kTiled};
  };
  const SplitSection keys{r.n_k_heads, 1, r.dk};
  DeltaNetBlock block;
  block.qkv = binder.matrix(layer_tensor(i, "attn_qkv.weight", "linear_attn.in_proj_qkv.weight"), r.channels(), h,
                            Split::head_rows({keys, keys, values_of(r.dv)}));
  block.z = binder.matrix(layer_tensor(i, "attn_gate.weight", "linear_attn.in_proj_z.weight"), values, h,
                          Split::head_rows({values_of(r.dv)}));
  block.beta = binder.matrix(layer_tensor(i, "ssm_beta.weight", "linear_attn.in_proj_b.weight"), r.n_v_heads, h,
                             Split::head_rows({values_of(1)}));
  block.alpha = binder.matrix(layer_tensor(i, "ssm_alpha.weight", "linear_attn.in_proj_a.weight"), r.n_v_heads, h,
                              Split::head_rows({values_of(1)}));
  block.out = binder.matrix(layer_tensor(i, "ssm_out.weight", "linear_attn.out_proj.weight"), h, values,
                            Split::head_columns(values_of(r.dv)));
  block.conv = binder.filter(layer_tensor(i, "ssm_conv1d.weight", "linear_attn.conv1d.weight"), r.channels(), r.n_taps);
  block.a_neg = binder.vector(layer_tensor(i, "ssm_a", "linear_attn.A_log"), r.n_v_heads, HfFix::kNegExp);
  const TensorName bias = layer_tensor(i, "ssm_dt.bias", "linear_attn.dt_bias");
  const TensorName ollama_bias = layer_tensor(i, "ssm_dt", "linear_attn.dt_bias");
  block.dt_bias = binder.vector(binder.has(ollama_bias) ? ollama_bias : bias, r.n_v_heads);
  block.norm =
      binder.vector(layer_tensor(i, "ssm_norm.weight", "linear_attn.norm.weight"), r.dv);  // plain, not zero-centred
  block.dims = r;
  block.eps = config.info.eps;
  return block;
}

// Whether a tensor belongs to a prediction block (GGUF: layers after the main ones) or to the vision tower, which
// Ollama's converter puts into the same file (v., mm.).
bool is_skipped(std::string_view name, const Qwen35Config& config) {
  for (const char* prefix : {"mtp.", "model.mtp.", "visual.", "model.visual.", "v.", "mm."})
    if (name.starts_with(prefix)) return true;
  if (!name.starts_with("blk.")) return false;
  int layer = -1;
  std::from_chars(name.data() + 4, name.data() + name.size(), layer);
  return layer >= config.info.n_layers && layer < config.info.n_layers + config.n_prediction_blocks;
}

}  // namespace

namespace {

std::unique_ptr<Model> make(const ModelFile& file, std::string_view architecture) {
  const Fields fields = qwen35_fields(file, architecture);
  Qwen35Config config = read_qwen35(fields);
  Binder binder(file);
  Weights weights = bind_common(binder, fields, config.info, HfFix::kAddOne, "post_attention_norm.weight");
  weights.rope = rope_angles(fields, binder, config.info.n_rot, config.mrope_sections);
  for (int i = 0; i < config.info.n_layers; ++i) {
    if (config.recurrent[i]) {
      weights.layers[i].mixer = bind_delta_net(binder, config, i);
    } else {
      weights.layers[i].mixer = bind_attention(binder, config.info, i, kQwen35Attention);
    }
    weights.layers[i].ffn = bind_ffn(binder, config.info, i);
  }
  binder.skip([&](std::string_view name) { return is_skipped(name, config); });
  return finish(binder, std::move(config.info), std::move(weights));
}

}  // namespace

std::unique_ptr<Model> make_qwen35(const ModelFile& file) { return make(file, kQwen35); }
std::unique_ptr<Model> make_qwen35moe(const ModelFile& file) { return make(file, kQwen35Moe); }

}  // namespace lb
