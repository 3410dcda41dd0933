// Qwen3.5 text, dense or a mixture: three Gated DeltaNet layers per gated full-attention layer, rope over a quarter of
// the head, zero-centred norms. Prediction blocks (mtp.cpp) and the vision tower are skipped.
#include <algorithm>
#include <charconv>
#include <limits>

#include "base/error.h"
#include "models/family.h"

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
  const int64_t channels = int64_t{2} * r.n_k_heads * r.dk + int64_t{1} * r.n_v_heads * r.dv;
  if (channels > std::numeric_limits<int>::max())
    fields.refuse(value_heads, cat("gives ", channels, " channels, more than 2^31"));
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

ExpertSizes experts(const Fields& fields) { return read_experts(fields, true); }

void read(const Fields& fields, FamilyConfig& config) {
  refuse_old_layouts(fields);
  ModelInfo& info = config.info;
  const FieldName mtp{"nextn_predict_layers", {}};
  if (fields.is_gguf()) {
    // block_count includes these blocks, which come last. find_count() would refuse zero.
    const uint64_t extra = fields.gguf()->find_uint(fields.gguf_key(mtp.gguf)).value_or(0);
    if (extra >= static_cast<uint64_t>(info.n_layers))
      fields.refuse(mtp, cat("is ", extra, " of ", info.n_layers, " blocks"));
    config.n_prediction_blocks = static_cast<int>(extra);
    info.n_layers -= config.n_prediction_blocks;
  }
  const std::vector<bool> recurrent = recurrent_layers(fields, info.n_layers);
  config.mrope_sections = mrope_sections(fields);
  if (!config.mrope_sections.empty()) info.images = ImagePositions::kGrid;
  info.n_rot = rotated_dims(fields, info.head_dim, 0.25);
  const RecurrentShape delta = delta_shape(fields);
  config.layers.resize(info.n_layers);
  for (int i = 0; i < info.n_layers; ++i)
    if (recurrent[i]) config.layers[i].delta_net = delta;
}

void refuse_uncounted_blocks(const ModelFile& file, const FamilyConfig& config) {
  if (file.gguf() == nullptr || config.n_prediction_blocks > 0) return;
  for (const TensorView& tensor : file.tensors().all())
    LB_CHECK(tensor.name.find(".nextn.") == std::string::npos, kFormat, to_string(tensor),
             " is of a prediction block (MTP), but the key qwen35.nextn_predict_layers, which counts these blocks, is "
             "missing or 0; convert the model again with a current converter");
}

// Whether a tensor belongs to a prediction block (GGUF: layers after the main ones) or to the vision tower, which
// Ollama's converter puts into the same file (v., mm.).
bool is_skipped(std::string_view name, const FamilyConfig& config) {
  for (const char* prefix : {"mtp.", "model.mtp.", "visual.", "model.visual.", "v.", "mm."})
    if (name.starts_with(prefix)) return true;
  if (!name.starts_with("blk.")) return false;
  int layer = -1;
  std::from_chars(name.data() + 4, name.data() + name.size(), layer);
  return layer >= config.info.n_layers && layer < config.info.n_layers + config.n_prediction_blocks;
}

constexpr AttentionKind kAttention{.qk_norms = true, .gated = true, .norms = HfFix::kAddOne};

}  // namespace

const Family kQwen35 = {
    .gguf = "qwen35",
    .hf = {"qwen3_5_text", "qwen3_5"},
    .defaults =
        {
            {"hidden_size", 4096},
            {"intermediate_size", 12288},
            {"num_hidden_layers", 32},
            {"num_attention_heads", 16},
            {"num_key_value_heads", 4},
            {"head_dim", 256},
            {"max_position_embeddings", 32768},
            {"rms_norm_eps", 1e-6},
            {"linear_conv_kernel_dim", 4},
            {"linear_key_head_dim", 128},
            {"linear_value_head_dim", 128},
            {"linear_num_key_heads", 16},
            {"linear_num_value_heads", 32},
        },
    .attention = kAttention,
    .ffn_norm = {.gguf = "post_attention_norm.weight"},
    .norms = HfFix::kAddOne,
    .read = read,
    .check = refuse_uncounted_blocks,
    .skips = is_skipped,
};

const Family kQwen35Moe = {
    .gguf = "qwen35moe",
    .hf = {"qwen3_5_moe_text", "qwen3_5_moe"},
    .defaults =
        {
            {"hidden_size", 2048},
            {"num_hidden_layers", 40},
            {"num_attention_heads", 16},
            {"num_key_value_heads", 2},
            {"head_dim", 256},
            {"max_position_embeddings", 32768},
            {"rms_norm_eps", 1e-6},
            {"linear_conv_kernel_dim", 4},
            {"linear_key_head_dim", 128},
            {"linear_value_head_dim", 128},
            {"linear_num_key_heads", 16},
            {"linear_num_value_heads", 32},
            {"moe_intermediate_size", 512},
            {"shared_expert_intermediate_size", 512},
            {"num_experts_per_tok", 8},
            {"num_experts", 256},
        },
    .attention = kAttention,
    .ffn_norm = {.gguf = "post_attention_norm.weight"},
    .norms = HfFix::kAddOne,
    .experts = experts,
    .read = read,
    .check = refuse_uncounted_blocks,
    .skips = is_skipped,
};

}  // namespace lb
