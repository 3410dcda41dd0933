// Configuration and manifest parts that families share, and one maker per family.
#pragma once

#include <memory>

#include "models/fields.h"
#include "models/model.h"
#include "weights/binder.h"

namespace lb {

// Whether a family binds biases of its attention.
enum class Biases { kRefused, kAttention };

// Reads and checks the dimensions common to all families and to draft models. Throws on features that the family does
// not support (biases, other activations).
void read_sizes(const Fields& fields, ModelInfo& info, Biases biases = Biases::kRefused);
// Names in config.json of a mixture's sizes, which differ between families.
struct ExpertNames {
  const char *n = "num_experts", *ffn = "moe_intermediate_size";
};
// Sizes of a mixture. Call before read_sizes(), which needs no dense feed-forward size then.
ExpertSizes read_experts(const Fields& fields, bool is_normalized, const ExpertNames& names = {});
// read_sizes(), and the fields that draft models do not have.
void read_common(const Fields& fields, ModelInfo& info, Biases biases = Biases::kRefused);

// Binds embedding, head and norms; the family binds mixers and feed-forward networks. `norms`: the fix that turns
// safetensors norms into plain scales. `ffn_norm`: GGUF name of the norm before the feed-forward network. Sets
// info.vocab and info.tied.
Weights bind_common(Binder& binder, const Fields& fields, ModelInfo& info, HfFix norms, const char* ffn_norm);

struct AttentionKind {
  bool qk_norms = false, gated = false, has_biases = false, has_sinks = false;
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

AttentionBlock bind_attention(Binder& binder, const ModelInfo& info, LayerNumber layer, const AttentionKind& kind);
SwiGluMlp bind_mlp(Binder& binder, const ModelInfo& info, LayerNumber layer);
// The layer's SwiGLU, or its mixture if the model has experts.
FeedForward bind_ffn(Binder& binder, const ModelInfo& info, LayerNumber layer);

// Every maker calls it last. Throws if a tensor is unbound.
std::unique_ptr<Model> finish(Binder& binder, ModelInfo info, Weights weights);

std::unique_ptr<Model> make_gpt_oss(const ModelFile& file);
std::unique_ptr<Model> make_llama(const ModelFile& file);
std::unique_ptr<Model> make_qwen3(const ModelFile& file);
std::unique_ptr<Model> make_qwen3moe(const ModelFile& file);
std::unique_ptr<Model> make_qwen35(const ModelFile& file);
std::unique_ptr<Model> make_qwen35moe(const ModelFile& file);

}  // namespace lb
