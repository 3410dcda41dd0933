// What families are made of: the configuration and the manifest they share, and one maker each.
#pragma once

#include <memory>

#include "models/fields.h"
#include "models/model.h"
#include "weights/binder.h"

namespace lb {

// Dimensions every family reads alike, checked; refuses what no family here has (biases, other activations).
void read_common(const Fields& fields, ModelInfo& info);

// Embedding, head, norms and MLPs. norms: what safetensors norms need to become plain scales; mlp_norm: the second
// norm's name in GGUF. Sets info.vocab and info.tied.
Weights bind_common(Binder& binder, const Fields& fields, ModelInfo& info, HfFix norms, const char* mlp_norm);

struct AttentionKind {
  bool qk_norms = false, gated = false;
  HfFix norms = HfFix::kNone;
  RopePairs pairs = RopePairs::kHalves;
};
AttentionBlock bind_attention(Binder& binder, const ModelInfo& info, int layer, const AttentionKind& kind);

// A tensor of one layer: "blk.3." + gguf, "layers.3." + hf.
TensorName layer_tensor(int layer, const char* gguf, const char* hf);

// The end of every maker: no tensor may be left over.
std::unique_ptr<Model> finish(Binder& binder, ModelInfo info, Weights weights);

std::unique_ptr<Model> make_llama(const ModelFile& file);
std::unique_ptr<Model> make_qwen3(const ModelFile& file);
std::unique_ptr<Model> make_qwen35(const ModelFile& file);

}  // namespace lb
