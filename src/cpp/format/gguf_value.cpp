// Reads and decodes metadata values. GgufReader::value checks array elements during parsing and reads them on access.
#include <bit>
#include <cstring>

#include "format/gguf_reader.h"

static_assert(std::endian::native == std::endian::little, "GGUF fields are read in place");

namespace lb {
namespace {

constexpr uint32_t kTypeCount = 13;
constexpr std::string_view kTypeNames[kTypeCount] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                                     "bool", "string", "array", "u64", "i64", "f64"};
constexpr uint8_t kTypeBytes[kTypeCount] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};  // 0: variable size

size_t fixed_bytes(GgufType type) { return kTypeBytes[static_cast<uint32_t>(type)]; }

// The smallest size of an element in a file; an array's count is checked against it before use.
size_t min_bytes(GgufType type) {
  if (type == GgufType::kString) return sizeof(uint64_t);
  if (type == GgufType::kArray) return sizeof(uint32_t) + sizeof(uint64_t);
  return fixed_bytes(type);
}

template <class T>
T load(std::span<const std::byte> bytes) {
  LB_ASSERT(bytes.size() == sizeof(T));
  T value;
  std::memcpy(&value, bytes.data(), sizeof(T));
  return value;
}

}  // namespace

std::string_view name(GgufType type) { return kTypeNames[static_cast<uint32_t>(type)]; }

std::span<const std::byte> GgufReader::take(uint64_t n, const char* what) {
  if (n > left())
    fail_at(ErrorCode::kFormat, at_, "expected ", n, " bytes of ", what, ", found ", left(), " before the end");
  const auto taken = bytes_.subspan(at_, static_cast<size_t>(n));
  at_ += taken.size();
  return taken;
}

std::string_view GgufReader::string(const char* what) {
  const uint64_t length = u64(what);
  const auto text = take(length, what);
  return {reinterpret_cast<const char*>(text.data()), text.size()};
}

GgufType GgufReader::type(const char* what) {
  const size_t start = at_;
  const uint32_t id = u32(what);
  if (id >= kTypeCount) fail_at(ErrorCode::kFormat, start, "expected a value type below ", kTypeCount, ", found ", id);
  return static_cast<GgufType>(id);
}

GgufValue GgufReader::value(GgufType type, int depth) {
  GgufValue value;
  value.type_ = type;
  if (type == GgufType::kArray) {
    array(value, depth);
  } else if (type == GgufType::kString) {
    const std::string_view text = string("a string");
    value.bytes_ = std::as_bytes(std::span(text));
  } else {
    const size_t start = at_;
    value.bytes_ = take(fixed_bytes(type), "a number");
    if (type == GgufType::kBool && std::to_integer<int>(value.bytes_[0]) > 1)
      fail_at(ErrorCode::kFormat, start, "expected a bool of 0 or 1, found ", std::to_integer<int>(value.bytes_[0]));
  }
  return value;
}

void GgufReader::array(GgufValue& value, int depth) {
  const size_t start = at_;
  if (depth >= kMaxArrayDepth)
    fail_at(ErrorCode::kFormat, start, "arrays nested deeper than ", kMaxArrayDepth, " levels");
  value.element_type_ = type("an array's element type");
  value.count_ = u64("an array's length");
  const size_t first = at_;
  if (value.count_ > left() / min_bytes(value.element_type_))
    fail_at(ErrorCode::kFormat, start, "an array of ", value.count_, " x ", name(value.element_type_),
            " cannot fit into the ", left(), " bytes left");
  if (const size_t size = fixed_bytes(value.element_type_); size > 0 && value.element_type_ != GgufType::kBool) {
    value.bytes_ = take(value.count_ * size, "an array");
    return;
  }
  for (uint64_t i = 0; i < value.count_; ++i) this->value(value.element_type_, depth + 1);
  value.bytes_ = bytes_.subspan(first, at_ - first);
}

GgufValue GgufValue::element(size_t& at) const {
  GgufReader reader(bytes_, "metadata", at);
  GgufValue value = reader.value(element_type_);
  at = reader.at();
  return value;
}

std::string GgufValue::type_text() const {
  if (type_ != GgufType::kArray) return std::string(name(type_));
  return cat("array of ", count_, " x ", name(element_type_));
}

bool GgufValue::is_integer() const {
  return type_ != GgufType::kString && type_ != GgufType::kArray && type_ != GgufType::kF32 && type_ != GgufType::kF64;
}

int64_t GgufValue::signed_integer() const {
  switch (type_) {
    case GgufType::kU8: return load<uint8_t>(bytes_);
    case GgufType::kI8: return load<int8_t>(bytes_);
    case GgufType::kU16: return load<uint16_t>(bytes_);
    case GgufType::kI16: return load<int16_t>(bytes_);
    case GgufType::kU32: return load<uint32_t>(bytes_);
    case GgufType::kI32: return load<int32_t>(bytes_);
    case GgufType::kBool: return boolean();
    case GgufType::kU64: return static_cast<int64_t>(load<uint64_t>(bytes_));
    case GgufType::kI64: return load<int64_t>(bytes_);
    default: assertion_failed("not an integer");
  }
}

bool GgufValue::is_negative() const { return type_ != GgufType::kU64 && signed_integer() < 0; }

uint64_t GgufValue::unsigned_integer() const { return static_cast<uint64_t>(signed_integer()); }

double GgufValue::floating() const {
  return type_ == GgufType::kF32 ? static_cast<double>(load<float>(bytes_)) : load<double>(bytes_);
}

bool GgufValue::boolean() const { return load<uint8_t>(bytes_) != 0; }

std::string_view GgufValue::string() const {
  LB_ASSERT(type_ == GgufType::kString);
  return {reinterpret_cast<const char*>(bytes_.data()), bytes_.size()};
}

}  // namespace lb
