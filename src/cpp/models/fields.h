// Reads a family's configuration from either format with one line per field.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "format/model_file.h"

namespace lb {

// A field's name in GGUF (without the architecture prefix) and in config.json (a dotted path). Several paths: the first
// present counts, since Hugging Face moved some over time.
struct FieldName {
  const char* gguf;
  std::vector<const char*> hf;
};

class Fields {
 public:
  // architecture: the GGUF prefix of the family, e.g. "qwen35".
  Fields(const ModelFile& file, std::string_view architecture);

  bool is_gguf() const { return gguf_ != nullptr; }
  const std::string& path() const { return file_.path; }
  // Positive integers up to 2^24 (sizes and counts); floats must be finite and above zero.
  int count(const FieldName& name) const;
  int count(const FieldName& name, int otherwise) const;
  std::optional<int> find_count(const FieldName& name) const;
  float positive(const FieldName& name) const;
  float positive(const FieldName& name, float otherwise) const;
  bool flag(const FieldName& name, bool otherwise) const;
  std::optional<std::string> find_string(const FieldName& name) const;

  const Json* hf(std::string_view dotted_path) const;  // null in GGUF or when absent (or JSON null)
  const GgufMetadata* gguf() const { return gguf_; }
  std::string gguf_key(std::string_view key) const { return architecture_ + "." + std::string(key); }
  std::string where(const FieldName& name) const;  // "model.gguf: qwen35.block_count"
  [[noreturn]] void refuse(const FieldName& name, std::string_view reason) const;

 private:
  std::optional<double> find_float(const FieldName& name) const;

  const ModelFile& file_;
  std::string architecture_;
  const GgufMetadata* gguf_ = nullptr;
  const Json* config_ = nullptr;
};

}  // namespace lb
