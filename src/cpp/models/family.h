// Configuration and manifest parts that families share, and the table of a family (family_*.cpp).
#pragma once

#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "models/fields.h"
#include "models/model.h"
#include "models/rope_angles.h"
#include "weights/binder.h"

namespace lb {

// Features that a family reads or binds itself. Other families refuse them.
struct Allowed {
  bool biases = false;         // of the attention
  bool own_rope = false;       // rope scaling
  bool layers_differ = false;  // in KV heads, head sizes and feed-forward sizes
  const char* activation = "silu";
};

// Reads and checks the dimensions common to all families and to draft models. Throws on features that the family does
// not support (biases, other activations).
void read_sizes(const Fields& fields, ModelInfo& info, const Allowed& allowed = {});
// Names in config.json of a mixture's sizes, which differ between families.
struct ExpertNames {
  const char *n = "num_experts", *ffn = "moe_intermediate_size", *used = "num_experts_per_tok";
};
// Sizes of a mixture. Call before read_sizes(), which needs no dense feed-forward size then.
ExpertSizes read_experts(const Fields& fields, bool is_normalized, const ExpertNames& names = {});
// read_sizes(), and the fields that draft models do not have.
void read_common(const Fields& fields, ModelInfo& info, const Allowed& allowed = {});

// Binds embedding, head and norms; the family binds mixers and feed-forward networks. `norms`: the fix that turns
// safetensors norms into plain scales. `ffn_norm`: names of the norm before the feed-forward network in GGUF and
// safetensors. Sets info.vocab and info.tied.
struct NormNames {
  const char *gguf = "ffn_norm.weight", *hf = "post_attention_layernorm.weight";
};
Weights bind_common(Binder& binder, const Fields& fields, ModelInfo& info, HfFix norms, const NormNames& ffn_norm);

struct AttentionKind {
  bool qk_norms = false, gated = false, has_biases = false, has_sinks = false;
  bool is_joined = false;          // q, k and v are one matrix: attn_qkv, qkv_proj
  bool normalises_values = false;  // without weight
  float scale = 0;                 // of the scores; 0: 1 / sqrt(head_dim)
  bool may_lack_values = false;    // GGUF: without attn_v, keys and values are one matrix
  // Set per layer (LayerKind).
  bool values_are_keys = false, has_kv = true;
  HfFix norms = HfFix::kNone;
  RopePairs pairs = RopePairs::kHalves;
};
// A layer's number in the names of each format. For a block after the main layers the two numbers differ.
struct LayerNumber {
  int gguf, hf;
  LayerNumber(int both) : gguf(both), hf(both) {}
  LayerNumber(int gguf, int hf) : gguf(gguf), hf(hf) {}
};
// Name of a tensor of one layer: "blk.3." + gguf, "layers.3." + hf.
TensorName layer_tensor(LayerNumber layer, const char* gguf, const char* hf);

// For families that rotate whole heads: throws if config.json says otherwise.
void refuse_partial_rotation(const Fields& fields);
// The number of values of a head that are rotated. default_part: the rotated share of a head if the file has none.
int rotated_dims(const Fields& fields, int head_dim, double default_part = 1);

AttentionBlock bind_attention(Binder& binder, const ModelInfo& info, LayerNumber layer, const AttentionKind& kind);
SwiGluMlp bind_mlp(Binder& binder, const ModelInfo& info, LayerNumber layer);
// The layer's SwiGLU, or its mixture if the model has experts.
FeedForward bind_ffn(Binder& binder, const ModelInfo& info, LayerNumber layer);
// Its mixture. hf_router, hf_experts: names in safetensors.
MoeBlock bind_moe(Binder& binder, const ModelInfo& info, LayerNumber layer, const char* hf_router = "mlp.gate.weight",
                  const char* hf_experts = "mlp.experts");
// The layer's SwiGLU, whose gate and up are one matrix.
SwiGluMlp bind_joined_mlp(Binder& binder, const ModelInfo& info, LayerNumber layer);
DeltaNetBlock bind_delta_net(Binder& binder, const ModelInfo& info, const RecurrentShape& shape, LayerNumber layer);

// One layer, as the file describes it.
struct LayerKind {
  int window = 0;                             // of the attention, in tokens; 0: the layer attends to all
  Rotation rotation = Rotation::kFirst;       // kNone: no position embedding
  int n_kv_heads = 0, head_dim = 0, ffn = 0;  // 0: the model's
  int kv_from = -1;                           // layer whose keys and values it reads; -1: its own
  bool values_are_keys = false;               // one matrix makes both
  std::optional<RecurrentShape> delta_net;    // Gated DeltaNet instead of attention
};

// A model of a family, as the file describes it.
struct FamilyConfig {
  ModelInfo info;
  std::vector<LayerKind> layers;  // [n_layers]
  std::vector<int> mrope_sections;
  QueryScale query_scale;
  int token_input_dim = 0;      // of each layer's own input of a token; 0: none
  int n_prediction_blocks = 0;  // GGUF: after the main layers
};

// Windows from the file's list of layer types. Without a list, every `period`-th layer attends to all.
void read_windows(const Fields& fields, std::span<LayerKind> layers, int period);
// Whether each layer has a window, from config.json's list of layer types; nullopt without a list.
std::optional<std::vector<bool>> find_sliding_types(const Fields& fields, size_t n_layers);
// `window`, unless it is too short for trees of drafts; then throws.
int checked_window(const Fields& fields, int window);
// The values of a GGUF field that lists one per layer; nullopt if it is missing or a single value.
std::optional<std::vector<uint64_t>> find_list(const Fields& fields, const char* gguf);
// One window for all layers, if the file gives one.
void read_window(const Fields& fields, FamilyConfig& config);

// A family: the names of its tensors, the options of its blocks, and how to read what only its configuration has.
struct Family {
  const char* gguf;             // general.architecture
  std::vector<const char*> hf;  // model_type, of the text model
  std::vector<HfDefault> defaults;
  Allowed allowed{};
  AttentionKind attention{};
  RopePairs gguf_pairs = RopePairs::kHalves;  // kAdjacent: the converter permutes the rows of q and k
  YarnRange gguf_yarn = YarnRange::kWholePairs;
  NormNames ffn_norm{};
  HfFix norms = HfFix::kNone;
  bool has_post_norms = false;     // of both branches, and a scale of each layer's output
  bool joins_gate_and_up = false;  // they are one matrix: ffn_up, gate_up_proj
  // The functions may be null. experts: called first. read: the rest; n_rot, layers, and what it checks.
  ExpertSizes (*experts)(const Fields&) = nullptr;
  void (*read)(const Fields&, FamilyConfig&) = nullptr;
  void (*bind_ropes)(const Fields&, Binder&, const FamilyConfig&, Weights&) = nullptr;  // null: rope_angles()
  FeedForward (*bind_experts)(Binder&, const ModelInfo&, int layer) = nullptr;  // of a mixture; null: bind_ffn()
  void (*check)(const ModelFile&, const FamilyConfig&) = nullptr;               // refuses files by their tensors
  bool (*skips)(std::string_view name, const FamilyConfig&) = nullptr;          // tensors that the engine does not use

  bool has_gelu() const { return std::string_view(allowed.activation) != "silu"; }
};

extern const Family kGemma4, kGemma4Assistant, kGptOss, kLlama, kMistral3, kPhi3, kQwen3, kQwen3Moe, kQwen35,
    kQwen35Moe, kSmolLm3;

// The family of this general.architecture; null: none.
const Family* find_family(std::string_view gguf);
FamilyConfig read_config(const Family& family, const Fields& fields);
// Binds the mixers, feed-forward networks and post norms of the layers that bind_common() has begun. target: the model
// whose keys and values the layers read; null: their own model's.
void bind_layers(Binder& binder, const Family& family, const FamilyConfig& config, Weights& weights,
                 const Model* target = nullptr);
// Binds a file of a family: the loop over layers of all families. Throws if a tensor is missing or unbound.
std::unique_ptr<Model> make_family(const Family& family, const ModelFile& file);

}  // namespace lb
