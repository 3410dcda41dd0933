// The registry of families, and their shared code.
#include "models/family.h"

#include <algorithm>
#include <array>
#include <limits>

#include "base/error.h"
#include "models/other_formats.h"
#include "models/rope_angles.h"

namespace lb {
namespace {

const Family* const kFamilies[] = {
    &kGemma4, &kGptOss, &kLlama, &kMistral3, &kPhi3, &kQwen3, &kQwen3Moe, &kQwen35, &kQwen35Moe, &kSmolLm3,
};

std::string architecture(const ModelFile& file) {
  if (file.gguf() != nullptr) return std::string(file.gguf()->metadata.string("general.architecture"));
  const Json& config = file.safetensors()->config;
  const Json* text = config.find("text_config");
  return (text != nullptr && text->is_object() ? *text : config).at("model_type").string();
}

// Some GGUF files list KV heads per layer, with 0 for layers without attention.
int kv_heads(const Fields& fields, int n_heads, bool may_differ) {
  const FieldName name{"attention.head_count_kv", {"num_key_value_heads"}};
  const GgufEntry* entry = fields.is_gguf() ? fields.gguf()->find(fields.gguf_key(name.gguf)) : nullptr;
  if (entry == nullptr || entry->value.type() != GgufType::kArray) return fields.count(name, n_heads);
  uint64_t heads = 0;
  for (uint64_t value : fields.gguf()->uint_array(entry->key)) {
    if (value != 0 && heads != 0 && value != heads && !may_differ)
      fields.refuse(name, "differs between layers; that is not supported");
    heads = std::max(heads, value);
  }
  if (heads < 1 || heads > static_cast<uint64_t>(n_heads)) fields.refuse(name, cat("gives ", heads, " KV heads"));
  return static_cast<int>(heads);
}

// The largest value of a field that may be listed per layer.
int largest(const Fields& fields, const FieldName& name) {
  const auto list = find_list(fields, name.gguf);
  if (!list) return fields.count(name);
  const uint64_t most = list->empty() ? 0 : std::ranges::max(*list);
  if (most < 1 || most > 1 << 24) fields.refuse(name, cat("lists ", most));
  return static_cast<int>(most);
}

// GGUF marks tied embeddings by omitting the head. A safetensors checkpoint states it in its configuration (on two
// levels in a multimodal wrapper) and may still contain a head: a copy of the embedding, or one trained separately.
bool is_tied(const Binder& binder, const Fields& fields, const TensorName& table, const TensorName& output) {
  if (fields.is_gguf()) return !binder.has(output);
  bool is_said = false;
  for (const Json* said : {fields.hf("tie_word_embeddings"), fields.hf_wrapper("tie_word_embeddings")})
    is_said |= said != nullptr && said->boolean();
  return is_said && (!binder.has(output) || binder.are_equal(table, output));
}

void refuse_flag(const Fields& fields, const char* key) {
  if (const Json* wanted = fields.hf(key))
    LB_CHECK(!wanted->boolean(), kUnsupported, wanted->where(), ": ", key, " = true is not supported");
}

}  // namespace

std::unique_ptr<Model> make_model(const ModelFile& file) {
  refuse_other_formats(file);
  const std::string found = architecture(file);
  std::string known;
  for (const Family* family : kFamilies) {
    if (file.gguf() != nullptr && found == family->gguf) return make_family(*family, file);
    if (file.gguf() == nullptr)
      for (const char* type : family->hf)
        if (found == type) return make_family(*family, file);
    known += cat(known.empty() ? "" : ", ", family->gguf);
  }
  fail(ErrorCode::kUnsupported, file.path, ": architecture \"", found, "\" is not supported; supported: ", known);
}

const Family* find_family(std::string_view gguf) {
  for (const Family* family : kFamilies)
    if (gguf == family->gguf) return family;
  return nullptr;
}

void read_sizes(const Fields& fields, ModelInfo& info, const Allowed& allowed) {
  info.n_layers = fields.count({"block_count", {"num_hidden_layers"}});
  info.hidden = fields.count({"embedding_length", {"hidden_size"}});
  const FieldName ffn{"feed_forward_length", {"intermediate_size"}};
  info.ffn = allowed.layers_differ && fields.is_gguf()      ? largest(fields, ffn)
             : info.experts.n > 0 && !allowed.layers_differ ? fields.find_count(ffn).value_or(0)
                                                            : fields.count(ffn);
  info.n_heads = fields.count({"attention.head_count", {"num_attention_heads"}});
  info.n_kv_heads = kv_heads(fields, info.n_heads, allowed.layers_differ);
  info.head_dim = fields.count({"attention.key_length", {"head_dim"}}, info.hidden / info.n_heads);
  if (info.n_layers > 1024)
    fields.refuse({"block_count", {"num_hidden_layers"}}, cat("is ", info.n_layers, "; at most 1024"));
  if (info.n_heads % info.n_kv_heads != 0)
    fields.refuse({"attention.head_count_kv", {"num_key_value_heads"}},
                  cat("is ", info.n_kv_heads, ", which does not divide the ", info.n_heads, " query heads"));
  if (info.head_dim < 8 || info.head_dim % 8 != 0 || info.head_dim > 512)
    fields.refuse({"attention.key_length", {"head_dim"}},
                  cat("is ", info.head_dim, "; supported: multiples of 8 up to 512"));
  // Twice: some families have a gate beside each query.
  const int64_t width = int64_t{2} * info.n_heads * info.head_dim;
  if (width > std::numeric_limits<int>::max())
    fields.refuse({"attention.head_count", {"num_attention_heads"}},
                  cat("gives ", info.n_heads, " heads of ", info.head_dim, " values, more than 2^30 together"));
  const FieldName value_length{"attention.value_length", {"v_head_dim"}};
  if (fields.count(value_length, info.head_dim) != info.head_dim)
    fields.refuse(value_length, "differs from the key length; that is not supported");
  const Json* act = fields.hf("hidden_act");
  if (act == nullptr) act = fields.hf("hidden_activation");
  LB_CHECK(act == nullptr || act->string() == allowed.activation, kUnsupported, act->where(), ": hidden_act \"",
           act->string(), "\" is not supported; supported: ", allowed.activation);
  if (!allowed.biases) refuse_flag(fields, "attention_bias");
  refuse_flag(fields, "mlp_bias");
}

void read_common(const Fields& fields, ModelInfo& info, const Allowed& allowed) {
  read_sizes(fields, info, allowed);
  info.max_context = fields.count({"context_length", {"max_position_embeddings"}});
  if (!allowed.own_rope) info.max_context = scaled_context(fields, info.max_context);
  info.eps = fields.positive({"attention.layer_norm_rms_epsilon", {"rms_norm_eps"}});
  refuse_flag(fields, "use_sliding_window");
  const Json* overrides = fields.hf("per_layer_config");
  if (overrides != nullptr && !overrides->members().empty() && !allowed.layers_differ)
    fields.refuse({"", {"per_layer_config"}}, "lets layers differ; that is not supported");
}

Weights bind_common(Binder& binder, const Fields& fields, ModelInfo& info, HfFix norms, const NormNames& ffn_norm) {
  Weights weights;
  const int h = info.hidden;
  const TensorName table{"token_embd.weight", "embed_tokens.weight"}, output{"output.weight", "lm_head.weight"};
  info.vocab = fields.find_count({"vocab_size", {"vocab_size"}}).value_or(0);
  if (info.vocab == 0) info.vocab = binder.height(table);  // most GGUF files give the size only as the table's height
  weights.embedding = binder.matrix(table, info.vocab, h, Split::none());
  weights.final_norm = binder.vector({"output_norm.weight", "norm.weight"}, h, norms);
  info.tied = is_tied(binder, fields, table, output);
  weights.head = weights.embedding;
  if (binder.has(output) || !info.tied) {
    const Matrix head = binder.matrix(output, info.vocab, h, Split::single_rows(info.vocab));
    if (!info.tied) weights.head = head;
  }
  for (int i = 0; i < info.n_layers; ++i) {
    Layer layer;
    layer.mixer_norm = binder.vector(layer_tensor(i, "attn_norm.weight", "input_layernorm.weight"), h, norms);
    layer.ffn_norm = binder.vector(layer_tensor(i, ffn_norm.gguf, ffn_norm.hf), h, norms);
    weights.layers.push_back(std::move(layer));
  }
  return weights;
}

namespace {

// gguf_suffix, module: the parts of the names that differ between a dense layer and a shared expert.
SwiGluMlp bind_swiglu(Binder& binder, int hidden, int ffn, LayerNumber i, const char* gguf_suffix, const char* module) {
  const auto matrix = [&](const char* kind, int n_out, int n_in, Split split) {
    const std::string gguf = cat("ffn_", kind, gguf_suffix, ".weight"), hf = cat(module, ".", kind, "_proj.weight");
    return binder.matrix(layer_tensor(i, gguf.c_str(), hf.c_str()), n_out, n_in, std::move(split));
  };
  return {.gate = matrix("gate", ffn, hidden, Split::rows(ffn)),
          .up = matrix("up", ffn, hidden, Split::rows(ffn)),
          .down = matrix("down", hidden, ffn, Split::columns(ffn))};
}

}  // namespace

SwiGluMlp bind_mlp(Binder& binder, const ModelInfo& info, LayerNumber i) {
  return bind_swiglu(binder, info.hidden, info.ffn, i, "", "mlp");
}

MoeBlock bind_moe(Binder& binder, const ModelInfo& info, LayerNumber i, const char* hf_router, const char* hf_experts) {
  const ExpertSizes& sizes = info.experts;
  const int h = info.hidden, f = sizes.ffn;
  const auto experts = [&](const char* kind, int n_out, int n_in) {
    const std::string gguf = cat("ffn_", kind, "_exps.weight"), hf = cat(hf_experts, ".", kind, "_proj");
    const auto of_expert = [&](int e) {
      const std::string one = cat(hf_experts, ".", e, ".", kind, "_proj.weight");
      return layer_tensor(i, gguf.c_str(), one.c_str());
    };
    return binder.experts(layer_tensor(i, gguf.c_str(), hf.c_str()), sizes.n, n_out, n_in,
                          binder.is_gguf() ? nullptr : std::function<TensorName(int)>(of_expert));
  };
  MoeBlock block{.sizes = sizes};
  block.router = binder.router(layer_tensor(i, "ffn_gate_inp.weight", hf_router), sizes.n, h);
  if (binder.has(layer_tensor(i, "ffn_gate_up_exps.weight", cat(hf_experts, ".gate_up_proj").c_str()))) {
    block.gate = experts("gate_up", 2 * f, h);
  } else {
    block.gate = experts("gate", f, h);
    block.up = experts("up", f, h);
  }
  block.down = experts("down", h, f);
  if (sizes.shared > 0) {
    block.shared = bind_swiglu(binder, h, sizes.shared, i, "_shexp", "mlp.shared_expert");
    block.shared_gate = binder.row(layer_tensor(i, "ffn_gate_inp_shexp.weight", "mlp.shared_expert_gate.weight"), h);
  }
  return block;
}

SwiGluMlp bind_joined_mlp(Binder& binder, const ModelInfo& info, LayerNumber i) {
  const int h = info.hidden, f = info.ffn;
  const TensorName both = layer_tensor(i, "ffn_up.weight", "mlp.gate_up_proj.weight");
  return {.gate = binder.rows_of(both, 2 * f, 0, f, h, Split::rows(f)),
          .up = binder.rows_of(both, 2 * f, f, f, h, Split::rows(f)),
          .down = binder.matrix(layer_tensor(i, "ffn_down.weight", "mlp.down_proj.weight"), h, f, Split::columns(f))};
}

FeedForward bind_ffn(Binder& binder, const ModelInfo& info, LayerNumber i) {
  if (info.experts.n > 0) return bind_moe(binder, info, i);
  return bind_mlp(binder, info, i);
}

ExpertSizes read_experts(const Fields& fields, bool is_normalized, const ExpertNames& names) {
  const FieldName n{"expert_count", {names.n}};
  const FieldName used{"expert_used_count", {names.used}};
  const ExpertSizes sizes{
      .n = fields.count(n),
      .used = fields.count(used),
      .ffn = fields.count({"expert_feed_forward_length", {names.ffn}}),
      .shared =
          fields.find_count({"expert_shared_feed_forward_length", {"shared_expert_intermediate_size"}}).value_or(0),
      .is_normalized = is_normalized};
  if (sizes.n > kMaxExperts) fields.refuse(n, cat("is ", sizes.n, "; at most ", kMaxExperts));
  if (sizes.used > std::min(kMaxChosen, sizes.n))
    fields.refuse(used, cat("is ", sizes.used, "; at most ", std::min(kMaxChosen, sizes.n)));
  return sizes;
}

void refuse_partial_rotation(const Fields& fields) {
  const double part = fields.is_gguf() ? 1 : find_rotary_part(fields).value_or(1);
  if (part != 1)
    fields.refuse({"", {"partial_rotary_factor"}}, cat("is ", part, "; this architecture rotates whole heads"));
}

AttentionBlock bind_attention(Binder& binder, const ModelInfo& info, LayerNumber i, const AttentionKind& kind) {
  const int h = info.hidden, d = info.head_dim, q = info.n_heads * d, kv = info.n_kv_heads * d;
  // A shard gets whole KV heads with their query heads, so attention needs no data of other shards.
  const int made = kind.gated ? 2 : 1, shared = info.n_heads / info.n_kv_heads;
  const Split queries = Split::head_rows({{info.n_kv_heads, shared, d * made}});
  const Split keys = Split::head_rows({{info.n_kv_heads, 1, d}});
  const Split outputs = Split::head_columns({info.n_kv_heads, shared, d});
  AttentionBlock block;
  if (kind.is_joined) {
    const TensorName all = layer_tensor(i, "attn_qkv.weight", "self_attn.qkv_proj.weight");
    block.q = binder.rows_of(all, q + 2 * kv, 0, q, h, queries);
    block.k = binder.rows_of(all, q + 2 * kv, q, kv, h, keys);
    block.v = binder.rows_of(all, q + 2 * kv, q + kv, kv, h, keys);
  } else {
    block.q = binder.matrix(layer_tensor(i, "attn_q.weight", "self_attn.q_proj.weight"), q * made, h, queries);
    if (kind.has_kv) {
      block.k = binder.matrix(layer_tensor(i, "attn_k.weight", "self_attn.k_proj.weight"), kv, h, keys);
      const TensorName v = layer_tensor(i, "attn_v.weight", "self_attn.v_proj.weight");
      const bool is_k = kind.values_are_keys || (kind.may_lack_values && binder.is_gguf() && !binder.has(v));
      block.v = is_k ? block.k : binder.matrix(v, kv, h, keys);
    }
  }
  block.o = binder.matrix(layer_tensor(i, "attn_output.weight", "self_attn.o_proj.weight"), h, q, outputs);
  if (kind.qk_norms) {
    block.q_norm = binder.vector(layer_tensor(i, "attn_q_norm.weight", "self_attn.q_norm.weight"), d, kind.norms);
    if (kind.has_kv)
      block.k_norm = binder.vector(layer_tensor(i, "attn_k_norm.weight", "self_attn.k_norm.weight"), d, kind.norms);
  }
  if (kind.normalises_values && kind.has_kv) block.v_norm = binder.ones(d);
  block.scale = kind.scale;
  if (kind.has_biases) {
    block.q_bias = binder.vector(layer_tensor(i, "attn_q.bias", "self_attn.q_proj.bias"), q);
    block.k_bias = binder.vector(layer_tensor(i, "attn_k.bias", "self_attn.k_proj.bias"), kv);
    block.v_bias = binder.vector(layer_tensor(i, "attn_v.bias", "self_attn.v_proj.bias"), kv);
    block.o_bias = binder.vector(layer_tensor(i, "attn_output.bias", "self_attn.o_proj.bias"), h);
  }
  if (kind.has_sinks)
    block.sinks = binder.vector(layer_tensor(i, "attn_sinks.weight", "self_attn.sinks"), info.n_heads);
  block.gated = kind.gated;
  block.n_heads = info.n_heads;
  block.n_kv_heads = info.n_kv_heads;
  block.head_dim = d;
  block.n_rot = info.n_rot;
  block.eps = info.eps;
  block.pairs = kind.pairs;
  return block;
}

DeltaNetBlock bind_delta_net(Binder& binder, const ModelInfo& info, const RecurrentShape& r, LayerNumber i) {
  const int h = info.hidden, values = r.n_v_heads * r.dv;
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
  block.eps = info.eps;
  return block;
}

TensorName layer_tensor(LayerNumber layer, const char* gguf, const char* hf) {
  return {cat("blk.", layer.gguf, ".", gguf), cat("layers.", layer.hf, ".", hf)};
}

}  // namespace lb
