#include "models/vision_config.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "base/error.h"

namespace lb {
namespace {

constexpr int kMaxSize = 1 << 16;

// An integer from 1 to kMaxSize.
int size_of(std::optional<int64_t> value, const std::string& where) {
  LB_CHECK(value && *value >= 1 && *value <= kMaxSize, kFormat, where, " must be between 1 and ", kMaxSize,
           value ? cat(", found ", *value) : std::string(", and is missing"));
  return static_cast<int>(*value);
}

VisionConfig read_gguf(const GgufMetadata& metadata, const std::string& path) {
  const auto text = [&](const char* key) { return metadata.find_string(key).value_or(""); };
  // Projectors of several towers name each one.
  std::string_view projector = text("clip.vision.projector_type");
  if (projector.empty()) projector = text("clip.projector_type");
  const bool is_gemma = projector == "gemma4v";
  LB_CHECK(text("general.architecture") == "clip" && (is_gemma || projector == "qwen3vl_merger"), kUnsupported, path,
           ": images: the vision towers of Qwen3.5 and Gemma 4 are supported (architecture clip, projector "
           "qwen3vl_merger or gemma4v), not ",
           text("general.architecture"), ", ", projector);
  const auto size = [&](const char* key) { return size_of(metadata.find_int(key), cat(path, ": ", key)); };
  const auto size_or = [&](const char* key, int otherwise) { return metadata.find_int(key) ? size(key) : otherwise; };
  VisionConfig config{.kind = is_gemma ? TowerKind::kGemma : TowerKind::kQwen,
                      .n_layers = size("clip.vision.block_count"),
                      .width = size("clip.vision.embedding_length"),
                      .n_heads = size("clip.vision.attention.head_count"),
                      .ffn = size("clip.vision.feed_forward_length"),
                      .patch = size("clip.vision.patch_size"),
                      .merge = is_gemma ? size_or("clip.vision.projector.scale_factor", 3)
                                        : size_or("clip.vision.spatial_merge_size", 2)};
  config.eps = static_cast<float>(metadata.find_float("clip.vision.attention.layer_norm_epsilon").value_or(1e-6));
  if (is_gemma) return config;  // whose graph scales pixels itself; image_mean and image_std are 0 and 1
  for (const auto& [key, to] :
       {std::pair("clip.vision.image_mean", &config.mean), std::pair("clip.vision.image_std", &config.deviation)})
    if (const auto values = metadata.find_float_array(key)) {
      LB_CHECK(values->size() == 3, kFormat, path, ": ", key, " must list 3 numbers, found ", values->size());
      std::ranges::copy(*values, to->begin());
    }
  if (const auto deep = metadata.find_uint_array("clip.vision.is_deepstack_layers"))
    LB_CHECK(std::ranges::count(*deep, 0u) == std::ssize(*deep), kUnsupported, path,
             ": images: a tower with deepstack layers (Qwen3-VL) is not supported yet");
  return config;
}

VisionConfig read_folder(const Json& config, const std::string& path) {
  const Json* vision = config.find("vision_config");
  LB_CHECK(vision != nullptr && vision->is_object(), kUnsupported, path,
           "/config.json: images: there is no vision_config, so the checkpoint has no vision tower");
  const auto number = [&](const char* key) {
    const Json* value = vision->find(key);
    return value == nullptr || value->is_null() ? std::nullopt : std::optional(value->integer());
  };
  const auto size = [&](const char* key) {
    return size_of(number(key), cat(path, "/config.json: vision_config.", key));
  };
  const Json* type = vision->find("model_type");
  const std::string kind = type != nullptr && type->is_string() ? std::string(type->string()) : "";
  if (kind == "gemma4_vision") {
    VisionConfig made{.kind = TowerKind::kGemma,
                      .n_layers = size("num_hidden_layers"),
                      .width = size("hidden_size"),
                      .n_heads = size("num_attention_heads"),
                      .ffn = size("intermediate_size"),
                      .patch = size("patch_size"),
                      .merge = size("pooling_kernel_size")};
    for (const auto& [key, expected] :
         {std::pair("head_dim", made.width / made.n_heads), std::pair("num_key_value_heads", made.n_heads)})
      if (const auto found = number(key))
        LB_CHECK(*found == expected, kUnsupported, path, "/config.json: images: vision_config.", key, " is ", *found,
                 "; supported: ", expected);
    if (const Json* eps = vision->find("rms_norm_eps")) made.eps = static_cast<float>(eps->number());
    return made;
  }
  LB_CHECK(kind.find("gemma4") == std::string::npos, kUnsupported, path,
           "/config.json: images: a vision embedder without layers (", kind, ") is not supported yet");
  if (const Json* deep = vision->find("deepstack_visual_indexes"); deep != nullptr && !deep->is_null())
    LB_CHECK(deep->array().empty(), kUnsupported, path,
             ": images: a tower with deepstack layers (Qwen3-VL) is not supported yet");
  return {.n_layers = size("depth"),
          .width = size("hidden_size"),
          .n_heads = size("num_heads"),
          .ffn = size("intermediate_size"),
          .patch = size("patch_size"),
          .merge = size("spatial_merge_size")};
}

}  // namespace

VisionConfig::Turn VisionConfig::turn(int pair) const {
  const int half = head_dim() / 4;
  return {(pair < half) == is_gemma(), std::pow(is_gemma() ? 100.0 : 10000.0, -double(pair % half) / half)};
}

float VisionConfig::attention_scale() const { return is_gemma() ? 1.0f : 1 / std::sqrt(float(head_dim())); }

VisionConfig read_vision_config(const ModelFile& file) {
  const GgufFile* gguf = file.gguf();
  VisionConfig config =
      gguf != nullptr ? read_gguf(gguf->metadata, file.path) : read_folder(file.safetensors()->config, file.path);
  const int fours = config.is_gemma() ? 8 : 4;
  LB_CHECK(config.width % config.n_heads == 0 && config.head_dim() % fours == 0, kFormat, file.path, ": a width of ",
           config.width, " values cannot be divided among ", config.n_heads, " vision heads");
  LB_CHECK(config.merge <= 8 && config.patch <= 64, kUnsupported, file.path, ": images: patches of ", config.patch,
           " pixels in blocks of ", config.merge, " are not supported; supported: up to 64, in blocks of up to 8");
  return config;
}

}  // namespace lb
