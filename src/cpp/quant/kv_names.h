// Names of the KV types, for host code.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "quant/kv_type.h"

namespace lb {

inline std::string_view kv_name(KvType type) { return kKvTraits[int(type)].name; }

// Case-insensitive.
inline std::optional<KvType> kv_type_from_name(std::string_view name) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c; };
  for (int i = 0; i < kKvTypeCount; ++i) {
    const std::string_view own = kKvTraits[i].name;
    bool is_same = own.size() == name.size();
    for (size_t j = 0; is_same && j < own.size(); ++j) is_same = lower(own[j]) == lower(name[j]);
    if (is_same) return KvType(i);
  }
  return std::nullopt;
}

// "f32, f16, ... or wht3"
inline std::string kv_names() {
  std::string text;
  for (int i = 0; i < kKvTypeCount; ++i)
    (text += i == 0 ? "" : i + 1 < kKvTypeCount ? ", " : " or ") += kKvTraits[i].name;
  return text;
}

// The type of K and the type of V.
struct KvTypes {
  KvType k = KvType::kF16, v = KvType::kF16;
  friend bool operator==(const KvTypes&, const KvTypes&) = default;
};
// "q8_0", or "q8_0/q4_0" if K and V differ.
inline std::string to_string(const KvTypes& types) {
  std::string text(kv_name(types.k));
  if (types.k != types.v) (text += '/') += kv_name(types.v);
  return text;
}
inline std::optional<KvTypes> kv_types_from_text(std::string_view text) {
  const size_t slash = text.find('/');
  const auto k = kv_type_from_name(text.substr(0, slash));
  const auto v = slash == text.npos ? k : kv_type_from_name(text.substr(slash + 1));
  if (!k || !v) return std::nullopt;
  return KvTypes{*k, *v};
}

}  // namespace lb
