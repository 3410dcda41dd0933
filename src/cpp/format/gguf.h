// GGUF versions 2 and 3, little endian, one file or a split set. Zero-copy: metadata and tensors point into the
// mapping. Errors are kFormat, or kUnsupported for valid files that this engine cannot use; they name file and byte
// offset.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "format/tensor_table.h"

namespace lb {

enum class GgufType : uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kString,
  kArray,
  kU64,
  kI64,
  kF64,
};
std::string_view name(GgufType type);

// One metadata value, validated by the parser and decoded on access. Callers check type() before they call a getter.
class GgufValue {
 public:
  GgufType type() const { return type_; }
  bool is_integer() const;   // any integer type or bool
  bool is_negative() const;  // of an integer
  uint64_t unsigned_integer() const;
  int64_t signed_integer() const;
  double floating() const;
  bool boolean() const;
  std::string_view string() const;

  GgufType element_type() const { return element_type_; }
  uint64_t count() const { return count_; }  // elements of an array
  // Calls visit(const GgufValue&) for each element of an array; arrays may hold arrays.
  template <class Visit>
  void for_each(Visit&& visit) const {
    size_t at = 0;
    for (uint64_t i = 0; i < count_; ++i) visit(element(at));
  }
  std::span<const std::byte> bytes() const { return bytes_; }  // as stored

  // "u32", "array of string": for messages.
  std::string type_text() const;

 private:
  friend class GgufReader;
  GgufValue element(size_t& at) const;

  GgufType type_ = GgufType::kU8;
  GgufType element_type_ = GgufType::kU8;
  uint64_t count_ = 0;
  std::span<const std::byte> bytes_;  // a number, the text of a string, or the elements of an array
};

struct GgufEntry {
  std::string_view key;
  GgufValue value;
  uint64_t offset;  // file offset of the key's length field
};

// Every getter throws when the key has another type. When the key is absent, find_ getters return nullopt and the plain
// getters throw.
class GgufMetadata {
 public:
  GgufMetadata() = default;
  GgufMetadata(std::string file, std::vector<GgufEntry> entries, std::shared_ptr<const void> owner);

  const std::string& file() const { return file_; }
  const std::vector<GgufEntry>& all() const { return entries_; }  // in file order
  const GgufEntry* find(std::string_view key) const;
  bool contains(std::string_view key) const { return find(key) != nullptr; }

  std::optional<uint64_t> find_uint(std::string_view key) const;  // any integer type holding a value >= 0
  std::optional<int64_t> find_int(std::string_view key) const;    // any integer type that fits
  std::optional<double> find_float(std::string_view key) const;   // f32 or f64
  std::optional<bool> find_bool(std::string_view key) const;
  std::optional<std::string_view> find_string(std::string_view key) const;
  std::optional<std::vector<uint64_t>> find_uint_array(std::string_view key) const;  // integer or bool elements >= 0
  std::optional<std::vector<int64_t>> find_int_array(std::string_view key) const;
  std::optional<std::vector<double>> find_float_array(std::string_view key) const;
  std::optional<std::vector<std::string_view>> find_string_array(std::string_view key) const;

  uint64_t uint(std::string_view key) const;
  int64_t integer(std::string_view key) const;
  double floating(std::string_view key) const;
  bool boolean(std::string_view key) const;
  std::string_view string(std::string_view key) const;
  std::vector<uint64_t> uint_array(std::string_view key) const;
  std::vector<int64_t> int_array(std::string_view key) const;
  std::vector<double> float_array(std::string_view key) const;
  std::vector<std::string_view> string_array(std::string_view key) const;

 private:
  [[noreturn]] void missing(std::string_view key, const char* expected) const;
  [[noreturn]] void mismatch(const GgufEntry& entry, const std::string& found, const char* expected) const;
  template <class T>
  std::optional<T> scalar(std::string_view key, const char* expected, bool (*fits)(const GgufValue&),
                          T (GgufValue::*decode)() const) const;
  template <class T>
  std::optional<std::vector<T>> array(std::string_view key, const char* expected, bool (*fits)(const GgufValue&),
                                      T (GgufValue::*decode)() const) const;
  template <class T>
  T required(std::optional<T> value, std::string_view key, const char* expected) const;

  std::string file_;
  std::vector<GgufEntry> entries_;
  std::vector<uint32_t> by_key_;  // indices of entries_, sorted by key
  std::shared_ptr<const void> owner_;
};

struct GgufFile {
  uint32_t version = 0;
  uint64_t alignment = 0;
  GgufMetadata metadata;
  TensorTable tensors;
};

// Opens all N parts when the path is NAME-00001-of-0000N.gguf; the metadata comes from the first part.
GgufFile open_gguf(const std::string& path);

// Reads one file from memory; bytes must start on an 8-byte boundary and live as long as `owner`.
GgufFile parse_gguf(std::span<const std::byte> bytes, const std::string& where, std::shared_ptr<const void> owner);

// The part number of a file in a split set, read from its name: NAME-00002-of-00005.gguf.
struct GgufSplitName {
  std::string stem;  // up to NAME
  uint32_t number;   // from 1
  uint32_t count;
};
std::optional<GgufSplitName> split_name(const std::string& path);

}  // namespace lb
