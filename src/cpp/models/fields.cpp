// Reads and checks configuration fields. Errors name the file and the field.
#include "models/fields.h"

#include <cmath>

#include "base/error.h"

namespace lb {
namespace {

constexpr int64_t kMaxCount = 1 << 24;

const Json* find_path(const Json* value, std::string_view path) {
  while (value != nullptr && !path.empty()) {
    const size_t dot = path.find('.');
    value = value->is_object() ? value->find(path.substr(0, dot)) : nullptr;
    path = dot == std::string_view::npos ? std::string_view() : path.substr(dot + 1);
  }
  return value == nullptr || value->is_null() ? nullptr : value;
}

}  // namespace

Fields::Fields(const ModelFile& file, std::string_view architecture, std::span<const HfDefault> defaults)
    : file_(file), architecture_(architecture), defaults_(defaults) {
  if (const GgufFile* gguf = file.gguf()) {
    gguf_ = &gguf->metadata;
  } else {
    const Json& config = file.safetensors()->config;
    const Json* text = config.find("text_config");  // vision-language wrappers
    const bool is_wrapped = text != nullptr && text->is_object();
    config_ = is_wrapped ? text : &config;
    wrapper_ = is_wrapped ? &config : nullptr;
  }
}

std::string Fields::where(const FieldName& name) const {
  if (gguf_ != nullptr) return cat(file_.path, ": ", gguf_key(name.gguf));
  return cat(file_.path, "/config.json: ", name.hf.empty() ? name.gguf : name.hf.front());
}

void Fields::refuse(const FieldName& name, std::string_view reason) const {
  fail(ErrorCode::kFormat, where(name), " ", reason);
}

const Json* Fields::hf(std::string_view path) const { return find_path(config_, path); }
const Json* Fields::hf_wrapper(std::string_view path) const { return find_path(wrapper_, path); }

std::optional<double> Fields::hf_default(const FieldName& name) const {
  if (gguf_ != nullptr) return std::nullopt;
  for (const char* path : name.hf)
    for (const HfDefault& known : defaults_)
      if (known.path == path) return known.value;
  return std::nullopt;
}

std::optional<int> Fields::find_count(const FieldName& name) const {
  std::optional<int64_t> value;
  if (gguf_ != nullptr) {
    value = gguf_->find_int(gguf_key(name.gguf));
  } else {
    for (const char* path : name.hf)
      if (const Json* found = hf(path)) {
        value = found->integer();
        break;
      }
    if (const auto known = hf_default(name); !value && known) value = static_cast<int64_t>(*known);
  }
  if (!value) return std::nullopt;
  if (*value < 1 || *value > kMaxCount) refuse(name, cat("must be between 1 and ", kMaxCount, ", found ", *value));
  return static_cast<int>(*value);
}

int Fields::count(const FieldName& name) const {
  const auto value = find_count(name);
  if (!value) refuse(name, "is missing; expected a positive integer");
  return *value;
}

int Fields::count(const FieldName& name, int otherwise) const { return find_count(name).value_or(otherwise); }

std::optional<float> Fields::find_positive(const FieldName& name) const {
  std::optional<double> value;
  if (gguf_ != nullptr) {
    value = gguf_->find_float(gguf_key(name.gguf));
  } else {
    for (const char* path : name.hf)
      if (const Json* found = hf(path)) {
        value = found->number();
        break;
      }
    if (!value) value = hf_default(name);
  }
  if (value && !(*value > 0 && *value < 1e30)) refuse(name, cat("must be a positive number, found ", *value));
  return value ? std::optional(static_cast<float>(*value)) : std::nullopt;
}

float Fields::positive(const FieldName& name) const {
  const auto value = find_positive(name);
  if (!value) refuse(name, "is missing; expected a positive number");
  return *value;
}

float Fields::positive(const FieldName& name, float otherwise) const { return find_positive(name).value_or(otherwise); }

bool Fields::flag(const FieldName& name, bool otherwise) const {
  if (gguf_ != nullptr) return gguf_->find_bool(gguf_key(name.gguf)).value_or(otherwise);
  for (const char* path : name.hf)
    if (const Json* found = hf(path)) return found->boolean();
  return otherwise;
}

std::optional<std::string> Fields::find_string(const FieldName& name) const {
  if (gguf_ != nullptr) {
    const auto value = gguf_->find_string(gguf_key(name.gguf));
    return value ? std::optional<std::string>(*value) : std::nullopt;
  }
  for (const char* path : name.hf)
    if (const Json* found = hf(path)) return found->string();
  return std::nullopt;
}

}  // namespace lb
