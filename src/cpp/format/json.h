// A small strict JSON reader for model configurations and safetensors headers.
// It bounds size, depth and number of values, checks UTF-8 and rejects duplicate keys. Every error is kFormat and names
// the file and the byte offset, including errors of the typed getters after parsing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace lb {

inline constexpr size_t kJsonMaxBytes = 100'000'000;  // the header limit of the safetensors format
inline constexpr int kJsonMaxDepth = 64;
inline constexpr size_t kJsonMaxValues = 2'000'000;  // 64 bytes each; ten per tensor serve 200,000 tensors

class Json {
 public:
  struct Member;

  Json() = default;  // null
  bool is_null() const { return std::holds_alternative<std::monostate>(value_); }
  bool is_boolean() const { return std::holds_alternative<bool>(value_); }
  bool is_integer() const { return std::holds_alternative<int64_t>(value_); }
  bool is_number() const { return is_integer() || std::holds_alternative<double>(value_); }
  bool is_string() const { return std::holds_alternative<std::string>(value_); }
  bool is_array() const { return std::holds_alternative<std::vector<Json>>(value_); }
  bool is_object() const { return std::holds_alternative<std::vector<Member>>(value_); }

  // Each getter throws when the value has another type.
  bool boolean() const;
  int64_t integer() const;  // a literal without fraction or exponent that fits int64
  double number() const;    // any number
  const std::string& string() const;
  const std::vector<Json>& array() const;
  const std::vector<Member>& members() const;  // in file order

  const Json* find(std::string_view key) const;  // nullptr when absent
  const Json& at(std::string_view key) const;    // throws when absent

  // "config.json: at byte 17": where this value starts, for errors about its meaning.
  std::string where() const;

 private:
  friend class JsonParser;
  template <class T>
  const T& get(const char* expected) const;

  std::variant<std::monostate, bool, int64_t, double, std::string, std::vector<Json>, std::vector<Member>> value_;
  std::shared_ptr<const std::string> source_;
  uint64_t offset_ = 0;
};

struct Json::Member {
  std::string key;
  Json value;
};

// `where` names the source in errors; `first_offset` is the byte offset of text[0] in the source.
Json parse_json(std::string_view text, const std::string& where, uint64_t first_offset = 0);

}  // namespace lb
