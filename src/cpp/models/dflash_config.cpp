// Sources of the defaults: the reference implementation (PyPI dflash 0.1.0), and for the older GGUF files the converter
// that wrote them.
#include "models/dflash_config.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "models/family.h"
#include "models/rope_angles.h"
#include "ops/block_conv.h"
#include "ops/select_candidates.h"

namespace lb {
namespace {

constexpr int kDefaultBlock = 16;
constexpr float kDefaultEps = 1e-6f;
// Mask id for older Qwen3.5 draft files that lack it; the vocabulary size identifies them.
constexpr int kQwen35Mask = 248070, kQwen35Vocab = 248320;

constexpr const char* kGgufName = "dflash";
constexpr const char* kOlderGgufNames[] = {"dflash-draft", "qwen35-dflash-draft", "gemma4-dflash-draft"};

// GGUF keys. In older files the keys have one more part.
struct DflashFields {
  const Fields& fields;
  bool is_older;

  FieldName name(const char* gguf, const char* older, const char* hf, const char* nested_hf) const {
    return {is_older ? older : gguf, {nested_hf, hf}};
  }
  FieldName block() const { return name("block_size", "dflash.block_size", "block_size", "dflash_config.block_size"); }
  FieldName taps() const {
    return name("target_layers", "dflash.target_layer_ids", "target_layer_ids", "dflash_config.target_layer_ids");
  }
  FieldName mask() const {
    return name("mask_token_id", "dflash.mask_token_id", "mask_token_id", "dflash_config.mask_token_id");
  }
};

std::string gguf_architecture(const ModelFile& file) {
  return std::string(file.gguf()->metadata.find_string("general.architecture").value_or(""));
}

std::optional<std::vector<int64_t>> find_list(const Fields& fields, const FieldName& name) {
  if (fields.is_gguf()) return fields.gguf()->find_int_array(fields.gguf_key(name.gguf));
  for (const char* path : name.hf)
    if (const Json* list = fields.hf(path)) {
      std::vector<int64_t> values;
      for (const Json& value : list->array()) values.push_back(value.integer());
      return values;
    }
  return std::nullopt;
}

std::optional<int64_t> find_mask(const DflashFields& dflash) {
  const Fields& fields = dflash.fields;
  if (!fields.is_gguf()) {
    for (const char* path : dflash.mask().hf)
      if (const Json* id = fields.hf(path)) return id->integer();
    return std::nullopt;
  }
  const auto own = fields.gguf()->find_int(fields.gguf_key(dflash.mask().gguf));
  return own ? own : fields.gguf()->find_int("tokenizer.ggml.mask_token_id");
}

int mask_token(const DflashFields& dflash, int vocab) {
  const std::optional<int64_t> id = find_mask(dflash);
  if (!id && dflash.is_older && vocab == kQwen35Vocab) return kQwen35Mask;
  if (!id) dflash.fields.refuse(dflash.mask(), "is missing; a draft model needs the id of its mask token");
  if (*id < 0 || *id >= vocab)
    dflash.fields.refuse(dflash.mask(), cat("is ", *id, "; the vocabulary has ", vocab, " tokens"));
  return static_cast<int>(*id);
}

// The reference's default, evenly spaced from the second layer to the third before the last; halves round to even.
std::vector<int> default_taps(int n_target_layers, int n_taps) {
  if (n_taps == 1) return {n_target_layers / 2};
  std::vector<int> taps;
  for (int i = 0; i < n_taps; ++i)
    taps.push_back(static_cast<int>(std::nearbyint(1 + i * double(n_target_layers - 4) / (n_taps - 1))));
  return taps;
}

std::vector<int> read_taps(const DflashFields& dflash, const ModelInfo& target, int n_taps) {
  const Fields& fields = dflash.fields;
  std::vector<int> taps;
  if (const auto list = find_list(fields, dflash.taps())) {
    // `target_layers` names the layer whose input is read, which is one after the layer that outputs it.
    const int shift = fields.is_gguf() && !dflash.is_older ? 1 : 0;
    for (int64_t id : *list) taps.push_back(static_cast<int>(std::clamp<int64_t>(id, -1, 1 << 24)) - shift);
  } else {
    taps = default_taps(target.n_layers, n_taps);
  }
  if (static_cast<int>(taps.size()) != n_taps)
    fields.refuse(dflash.taps(), cat("lists ", taps.size(), " layers; the weights are for ", n_taps));
  for (int id : taps)
    LB_CHECK(id >= 0 && id < target.n_layers, kUnsupported, fields.where(dflash.taps()), ": the draft reads layer ", id,
             " of its target, whose layers are 0 to ", target.n_layers - 1, "; it was made for another target");
  return taps;
}

void read_masks(const Fields& fields, DflashConfig& config) {
  const FieldName types{"attention.sliding_window_pattern", {"layer_types"}};
  const int n = config.info.n_layers;
  if (const Json* list = fields.hf("layer_types")) {
    for (const Json& type : list->array()) {
      const bool sliding = type.string() == "sliding_attention";
      LB_CHECK(sliding || type.string() == "full_attention", kUnsupported, type.where(), ": layer type \"",
               type.string(), "\" is not supported; supported: full_attention, sliding_attention");
      config.sliding.push_back(sliding);
    }
  } else if (fields.is_gguf()) {
    if (const auto flags = fields.gguf()->find_uint_array(fields.gguf_key(types.gguf)))
      config.sliding.assign(flags->begin(), flags->end());
  }
  if (config.sliding.empty()) config.sliding.assign(n, false);
  if (static_cast<int>(config.sliding.size()) != n)
    fields.refuse(types, cat("lists ", config.sliding.size(), " layers; the draft has ", n));
  if (std::ranges::find(config.sliding, true) != config.sliding.end())
    config.window = fields.count({"attention.sliding_window", {"sliding_window"}});
  const FieldName causal{"attention.causal", {"is_causal"}};
  for (bool sliding : config.sliding) config.causal.push_back(fields.flag(causal, sliding));
}

// A file without vocab_size may still carry the target's tokenizer.
std::optional<int> find_vocab(const Fields& fields) {
  if (const auto count = fields.find_count({"vocab_size", {"vocab_size"}})) return count;
  if (!fields.is_gguf()) return std::nullopt;
  const auto tokens = fields.gguf()->find_string_array("tokenizer.ggml.tokens");
  return tokens ? std::optional(static_cast<int>(tokens->size())) : std::nullopt;
}

void check_target(const Fields& fields, const ModelInfo& draft, const ModelInfo& target) {
  LB_CHECK(draft.hidden == target.hidden, kUnsupported, fields.path(), ": the draft is for a target with hidden size ",
           draft.hidden, "; the target's is ", target.hidden);
  const std::optional<int> vocab = find_vocab(fields), depth = fields.find_count({"", {"num_target_layers"}});
  LB_CHECK(!vocab || *vocab == target.vocab, kUnsupported, fields.path(), ": the draft is for a vocabulary of ", *vocab,
           " tokens; the target's has ", target.vocab);
  LB_CHECK(!depth || *depth == target.n_layers, kUnsupported, fields.path(), ": the draft is for a target of ", *depth,
           " layers; the target has ", target.n_layers);
}

// A draft of a multimodal target may have M-RoPE sections; all pairs must be temporal, which equals ordinary rope.
void check_rope(const Fields& fields, int head_dim) {
  // No default: a wrong theta would silently lower acceptance.
  if (!find_rope_theta(fields))
    fields.refuse({"rope.freq_base", {"rope_parameters.rope_theta"}}, "is missing; expected a positive number");
  const FieldName rotated{"rope.dimension_count", {}}, sections{"rope.dimension_sections", {}};
  if (fields.count(rotated, head_dim) != head_dim)
    fields.refuse(rotated, cat("is ", fields.count(rotated), "; a draft rotates whole heads of ", head_dim));
  if (const auto list = find_list(fields, sections))
    if (list->empty() || list->front() != head_dim / 2)
      fields.refuse(sections, cat("must give all ", head_dim / 2, " pairs to the first axis"));
}

void refuse_embedding_scale(const Fields& fields) {
  const FieldName name{"embedding_scale", {"dflash_config.input_embedding_scale", "input_embedding_scale"}};
  if (fields.positive(name, 1.0f) != 1.0f) fields.refuse(name, "is not 1; scaled embeddings are not supported");
}

}  // namespace

bool is_dflash(const ModelFile& file) {
  if (file.gguf() != nullptr) {
    const std::string found = gguf_architecture(file);
    return found == kGgufName || std::ranges::find(kOlderGgufNames, found) != std::end(kOlderGgufNames);
  }
  const Json& config = file.safetensors()->config;
  return config.find("dflash_config") != nullptr || file.tensors().find("hidden_norm.weight") != nullptr;
}

std::string dflash_architecture(const ModelFile& file) {
  return file.gguf() != nullptr ? gguf_architecture(file) : kGgufName;
}

DflashConfig read_dflash(const Fields& fields, const ModelInfo& target, int n_taps) {
  const DflashFields dflash{fields, fields.is_gguf() && fields.gguf_key("") != cat(kGgufName, ".")};
  DflashConfig config{.info = {.architecture = kGgufName}};
  ModelInfo& info = config.info;
  read_sizes(fields, info);
  info.eps = fields.positive({"attention.layer_norm_rms_epsilon", {"rms_norm_eps"}}, kDefaultEps);
  info.vocab = target.vocab;
  info.n_rot = info.head_dim;
  check_target(fields, info, target);
  check_rope(fields, info.head_dim);
  refuse_embedding_scale(fields);
  const FieldName norm{"dflash.context_kv_layer_norm", {"dflash_config.context_kv_layer_norm"}};
  if (fields.flag(norm, false)) fields.refuse(norm, "is set; normed context rows (Laguna) are not supported");
  config.block = fields.count(dflash.block(), kDefaultBlock);
  if (config.block < 2 || config.block > kMaxTree)
    fields.refuse(dflash.block(), cat("is ", config.block, "; supported: 2 to ", kMaxTree));
  config.mask_token = mask_token(dflash, target.vocab);
  config.taps = read_taps(dflash, target, n_taps);
  read_masks(fields, config);
  config.logit_scale =
      fields.positive({"logit_scale", {"dflash_config.output_multiplier", "output_multiplier"}}, config.logit_scale);
  config.logit_softcap = fields
                             .find_positive({"final_logit_softcapping",
                                             {"dflash_config.final_logit_softcapping", "final_logit_softcapping"}})
                             .value_or(0);
  if (!fields.is_gguf() && !fields.flag({"", {"rope_is_neox_style"}}, true)) config.pairs = RopePairs::kAdjacent;
  return config;
}

Dflash2Config read_dflash2(const Fields& fields, int hidden) {
  const auto count = [&](const char* gguf, const char* nested_hf, const char* hf) {
    return fields.count({gguf, {nested_hf, hf}});
  };
  const Dflash2Config config{
      .conv_taps = count("conv_kernel_size", "dflash_config.conv_kernel_size", "conv_kernel_size"),
      .conv_group = count("conv_group_size", "dflash_config.conv_group_size", "conv_group_size"),
      .rank = count("selector_rank", "dflash_config.selector_rank", "selector_rank"),
      .top_k = count("selector_top_k", "dflash_config.selector_top_k", "selector_top_k"),
  };
  const auto check = [&](const char* gguf, const char* hf, int found, int most) {
    if (found > most) fields.refuse({gguf, {hf}}, cat("is ", found, "; supported: up to ", most));
  };
  check("conv_kernel_size", "dflash_config.conv_kernel_size", config.conv_taps, kMaxBlockTaps);
  check("selector_rank", "dflash_config.selector_rank", config.rank, kMaxSelectorRank);
  check("selector_top_k", "dflash_config.selector_top_k", config.top_k, kMaxTopTokens);
  const FieldName group{"conv_group_size", {"dflash_config.conv_group_size"}};
  if (hidden % config.conv_group != 0)
    fields.refuse(group, cat("is ", config.conv_group, ", which does not divide the hidden size ", hidden));
  return config;
}

}  // namespace lb
