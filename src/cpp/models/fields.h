// Typed reading of a family's configuration from GGUF metadata or config.json.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "format/model_file.h"

namespace lb {

// A field's name in GGUF (without the architecture prefix) and its dotted paths in config.json. The first path present
// wins: Hugging Face moved some fields over time.
struct FieldName {
  const char* gguf;
  std::vector<const char*> hf;
};

// Defaults of transformers' configuration class of a family, for keys that config.json lacks. If a key of the text
// model has the default value, a multimodal wrapper omits it.
struct HfDefault {
  std::string_view path;
  double value;
};

class Fields {
 public:
  // architecture: the GGUF prefix of the family, e.g. "qwen35". defaults: must outlive the Fields.
  Fields(const ModelFile& file, std::string_view architecture, std::span<const HfDefault> defaults = {});

  bool is_gguf() const { return gguf_ != nullptr; }
  const std::string& path() const { return file_.path; }
  const std::string& architecture() const { return architecture_; }
  // Counts are integers from 1 to 2^24; floats are finite and above zero. Without `otherwise` the field is required.
  int count(const FieldName& name) const;
  int count(const FieldName& name, int otherwise) const;
  std::optional<int> find_count(const FieldName& name) const;
  float positive(const FieldName& name) const;
  std::optional<float> find_positive(const FieldName& name) const;
  float positive(const FieldName& name, float otherwise) const;
  bool flag(const FieldName& name, bool otherwise) const;
  std::optional<std::string> find_string(const FieldName& name) const;

  const Json* hf(std::string_view dotted_path) const;  // null in GGUF or when absent (or JSON null)
  // The same in a multimodal wrapper, next to its text_config. Null without a wrapper.
  const Json* hf_wrapper(std::string_view dotted_path) const;
  const GgufMetadata* gguf() const { return gguf_; }
  std::string gguf_key(std::string_view key) const { return architecture_ + "." + std::string(key); }
  std::string where(const FieldName& name) const;  // "model.gguf: qwen35.block_count"
  [[noreturn]] void refuse(const FieldName& name, std::string_view reason) const;

 private:
  const ModelFile& file_;
  std::string architecture_;
  const GgufMetadata* gguf_ = nullptr;
  const Json *config_ = nullptr, *wrapper_ = nullptr;
  std::span<const HfDefault> defaults_;

  std::optional<double> hf_default(const FieldName& name) const;
};

}  // namespace lb
