#include "models/other_formats.h"

#include <array>
#include <string>
#include <utility>

#include "base/error.h"
#include "format/text.h"

namespace lb {
namespace {

constexpr const char* kUseOtherWeights = "Use a checkpoint in BF16, FP8 or NVFP4, or a GGUF file";

// --- GGUF

void refuse_gguf(const GgufFile& file) {
  const GgufMetadata& metadata = file.metadata;
  const std::string& where = metadata.file();
  const auto kind = metadata.find_string("general.type");
  LB_CHECK(kind != "adapter", kUnsupported, where,
           ": this is a LoRA adapter, not a model; merge it into its base model, for example with llama-export-lora");
  LB_CHECK(kind != "mmproj", kUnsupported, where, ": this is a vision projector, not a model");
  const std::string prefix = std::string(metadata.string("general.architecture")) + ".";
  constexpr uint64_t kRank = 4;
  LB_CHECK(metadata.find_uint(prefix + "pooling_type") != kRank && file.tensors.find("cls.weight") == nullptr &&
               file.tensors.find("cls.output.weight") == nullptr,
           kUnsupported, where, ": this is a reranker or classifier, whose scores lucebox does not compute");
  LB_CHECK(metadata.find_bool(prefix + "attention.causal").value_or(true), kUnsupported, where, ": ", prefix,
           "attention.causal is false: bidirectional attention is not supported");
}

// --- safetensors

// The first of these objects that has the key.
const Json* find(std::array<const Json*, 2> configs, std::string_view key) {
  for (const Json* config : configs)
    if (const Json* found = config == nullptr || !config->is_object() ? nullptr : config->find(key);
        found != nullptr && !found->is_null())
      return found;
  return nullptr;
}

std::string text_of(const Json* json) { return json != nullptr && json->is_string() ? json->string() : ""; }

void refuse_task(std::array<const Json*, 2> configs) {
  if (const Json* classes = find(configs, "architectures"); classes != nullptr && classes->is_array())
    for (const Json& name : classes->array())
      for (const char* task : {"ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering",
                               "ForRewardModel", "ForProcessRewardModel"})
        LB_CHECK(!name.is_string() || !name.string().ends_with(task), kUnsupported, name.where(), ": ",
                 quoted(name.string()), " is a reranker or classifier, whose scores lucebox does not compute");
  for (const auto& [key, refused] : {std::pair("is_causal", false), std::pair("use_bidirectional_attention", true)})
    if (const Json* value = find(configs, key); value != nullptr && value->is_boolean())
      LB_CHECK(value->boolean() != refused, kUnsupported, value->where(), ": ", key, " = ", refused ? "true" : "false",
               ": bidirectional attention is not supported");
}

// Names of quantisation methods whose weights cannot be read, as users know them.
constexpr std::pair<const char*, const char*> kMethods[] = {
    {"bitsandbytes", "bitsandbytes"},
    {"gptq", "GPTQ"},
    {"awq", "AWQ"},
    {"aqlm", "AQLM"},
    {"hqq", "HQQ"},
    {"quanto", "Quanto"},
    {"eetq", "EETQ"},
    {"vptq", "VPTQ"},
    {"spqr", "SpQR"},
    {"bitnet", "BitNet"},
    {"torchao", "torchao"},
    {"auto-round", "AutoRound"},
    {"mxfp4", "MXFP4"},
    {"higgs", "HIGGS"},
    {"exl2", "EXL2"},
    {"exl3", "EXL3"},
};

void refuse_quantisation(std::array<const Json*, 2> configs) {
  const Json* settings = find(configs, "quantization_config");
  const Json* mlx = find(configs, "quantization");
  const std::string method =
      settings != nullptr && settings->is_object() ? text_of(settings->find("quant_method")) : "";
  if (mlx != nullptr && mlx->is_object() && mlx->find("group_size") != nullptr && method.empty()) {
    const Json* bits = mlx->find("bits");
    fail(ErrorCode::kUnsupported, mlx->where(), ": weights of MLX in ",
         bits != nullptr && bits->is_integer() ? std::to_string(bits->integer()) : "few", " bits are not supported. ",
         kUseOtherWeights);
  }
  const Json* type = find(configs, "model_type");
  if (method == "mxfp4" && text_of(type) == "gpt_oss") return;
  for (const auto& [name, shown] : kMethods)
    LB_CHECK(method != name, kUnsupported, settings->where(), ": weights of ", shown, " are not supported. ",
             kUseOtherWeights);
  if (method != "compressed-tensors") return;
  const std::string format = text_of(settings->find("format"));
  for (const char* refused : {"mxfp4-pack-quantized", "pack-quantized", "marlin-24"})
    LB_CHECK(format != refused, kUnsupported, settings->where(), ": weights of compressed-tensors in the format ",
             quoted(format), " are not supported. ", kUseOtherWeights);
}

}  // namespace

void refuse_other_formats(const ModelFile& file) {
  if (file.gguf() != nullptr) return refuse_gguf(*file.gguf());
  const Json& config = file.safetensors()->config;
  const std::array<const Json*, 2> configs{&config, config.find("text_config")};
  refuse_task(configs);
  refuse_quantisation(configs);
}

}  // namespace lb
