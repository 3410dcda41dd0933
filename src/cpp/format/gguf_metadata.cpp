// Typed look-ups by key. Each getter is one template call: `fits` accepts or rejects a value, `decode` reads it.
#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "format/gguf.h"
#include "format/text.h"

namespace lb {
namespace {

bool is_unsigned(const GgufValue& v) { return v.is_integer() && !v.is_negative(); }
bool is_signed(const GgufValue& v) { return v.is_integer() && (v.type() != GgufType::kU64 || v.signed_integer() >= 0); }
bool is_floating(const GgufValue& v) { return v.type() == GgufType::kF32 || v.type() == GgufType::kF64; }
bool is_boolean(const GgufValue& v) { return v.type() == GgufType::kBool; }
bool is_string(const GgufValue& v) { return v.type() == GgufType::kString; }

constexpr const char* kUnsigned = "an integer >= 0";
constexpr const char* kSigned = "a 64-bit integer";
constexpr const char* kFloating = "f32 or f64";
constexpr const char* kBoolean = "a bool";
constexpr const char* kString = "a string";
constexpr const char* kUnsignedArray = "an array of integers >= 0";
constexpr const char* kSignedArray = "an array of 64-bit integers";
constexpr const char* kFloatingArray = "an array of f32 or f64";
constexpr const char* kStringArray = "an array of strings";

std::string value_text(const GgufValue& v) {
  if (!v.is_integer()) return v.type_text();
  return v.is_negative() ? cat(v.type_text(), " ", v.signed_integer()) : cat(v.type_text(), " ", v.unsigned_integer());
}

}  // namespace

GgufMetadata::GgufMetadata(std::string file, std::vector<GgufEntry> entries, std::shared_ptr<const void> owner)
    : file_(std::move(file)), entries_(std::move(entries)), by_key_(entries_.size()), owner_(std::move(owner)) {
  std::iota(by_key_.begin(), by_key_.end(), 0u);
  std::sort(by_key_.begin(), by_key_.end(),
            [this](uint32_t a, uint32_t b) { return std::pair(entries_[a].key, a) < std::pair(entries_[b].key, b); });
  const auto twice = std::adjacent_find(by_key_.begin(), by_key_.end(),
                                        [this](uint32_t a, uint32_t b) { return entries_[a].key == entries_[b].key; });
  if (twice != by_key_.end()) {
    const GgufEntry &first = entries_[twice[0]], &second = entries_[twice[1]];
    fail(ErrorCode::kFormat, file_, ": at byte ", second.offset, ": duplicate key ", quoted(second.key),
         ", already at byte ", first.offset);
  }
}

const GgufEntry* GgufMetadata::find(std::string_view key) const {
  const auto at = std::lower_bound(by_key_.begin(), by_key_.end(), key,
                                   [this](uint32_t i, std::string_view wanted) { return entries_[i].key < wanted; });
  return at != by_key_.end() && entries_[*at].key == key ? &entries_[*at] : nullptr;
}

void GgufMetadata::missing(std::string_view key, const char* expected) const {
  fail(ErrorCode::kFormat, file_, ": metadata key ", quoted(key), " is missing, expected ", expected);
}

void GgufMetadata::mismatch(const GgufEntry& entry, const std::string& found, const char* expected) const {
  fail(ErrorCode::kFormat, file_, ": at byte ", entry.offset, ": metadata key ", quoted(entry.key), ": expected ",
       expected, ", found ", found);
}

template <class T>
std::optional<T> GgufMetadata::scalar(std::string_view key, const char* expected, bool (*fits)(const GgufValue&),
                                      T (GgufValue::*decode)() const) const {
  const GgufEntry* entry = find(key);
  if (!entry) return std::nullopt;
  if (!fits(entry->value)) mismatch(*entry, value_text(entry->value), expected);
  return (entry->value.*decode)();
}

template <class T>
std::optional<std::vector<T>> GgufMetadata::array(std::string_view key, const char* expected,
                                                  bool (*fits)(const GgufValue&),
                                                  T (GgufValue::*decode)() const) const {
  const GgufEntry* entry = find(key);
  if (!entry) return std::nullopt;
  if (entry->value.type() != GgufType::kArray) mismatch(*entry, value_text(entry->value), expected);
  std::vector<T> values;
  values.reserve(entry->value.count());  // the parser has checked the count against the file's size
  entry->value.for_each([&](const GgufValue& element) {
    if (!fits(element)) mismatch(*entry, cat(value_text(element), " as element ", values.size()), expected);
    values.push_back((element.*decode)());
  });
  return values;
}

template <class T>
T GgufMetadata::required(std::optional<T> value, std::string_view key, const char* expected) const {
  if (!value) missing(key, expected);
  return *std::move(value);
}

std::optional<uint64_t> GgufMetadata::find_uint(std::string_view key) const {
  return scalar(key, kUnsigned, is_unsigned, &GgufValue::unsigned_integer);
}
std::optional<int64_t> GgufMetadata::find_int(std::string_view key) const {
  return scalar(key, kSigned, is_signed, &GgufValue::signed_integer);
}
std::optional<double> GgufMetadata::find_float(std::string_view key) const {
  return scalar(key, kFloating, is_floating, &GgufValue::floating);
}
std::optional<bool> GgufMetadata::find_bool(std::string_view key) const {
  return scalar(key, kBoolean, is_boolean, &GgufValue::boolean);
}
std::optional<std::string_view> GgufMetadata::find_string(std::string_view key) const {
  return scalar(key, kString, is_string, &GgufValue::string);
}
std::optional<std::vector<uint64_t>> GgufMetadata::find_uint_array(std::string_view key) const {
  return array(key, kUnsignedArray, is_unsigned, &GgufValue::unsigned_integer);
}
std::optional<std::vector<int64_t>> GgufMetadata::find_int_array(std::string_view key) const {
  return array(key, kSignedArray, is_signed, &GgufValue::signed_integer);
}
std::optional<std::vector<double>> GgufMetadata::find_float_array(std::string_view key) const {
  return array(key, kFloatingArray, is_floating, &GgufValue::floating);
}
std::optional<std::vector<std::string_view>> GgufMetadata::find_string_array(std::string_view key) const {
  return array(key, kStringArray, is_string, &GgufValue::string);
}

uint64_t GgufMetadata::uint(std::string_view key) const { return required(find_uint(key), key, kUnsigned); }
int64_t GgufMetadata::integer(std::string_view key) const { return required(find_int(key), key, kSigned); }
double GgufMetadata::floating(std::string_view key) const { return required(find_float(key), key, kFloating); }
bool GgufMetadata::boolean(std::string_view key) const { return required(find_bool(key), key, kBoolean); }
std::string_view GgufMetadata::string(std::string_view key) const { return required(find_string(key), key, kString); }
std::vector<uint64_t> GgufMetadata::uint_array(std::string_view key) const {
  return required(find_uint_array(key), key, kUnsignedArray);
}
std::vector<int64_t> GgufMetadata::int_array(std::string_view key) const {
  return required(find_int_array(key), key, kSignedArray);
}
std::vector<double> GgufMetadata::float_array(std::string_view key) const {
  return required(find_float_array(key), key, kFloatingArray);
}
std::vector<std::string_view> GgufMetadata::string_array(std::string_view key) const {
  return required(find_string_array(key), key, kStringArray);
}

}  // namespace lb
