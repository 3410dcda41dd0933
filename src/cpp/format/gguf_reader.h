// The only reader of a GGUF file's bytes. It checks every length against the bytes left before it uses the length to
// allocate, multiply or skip. Private to format/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "format/gguf.h"

namespace lb {

class GgufReader {
 public:
  static constexpr int kMaxArrayDepth = 4;

  GgufReader(std::span<const std::byte> bytes, std::string_view file, size_t at = 0)
      : bytes_(bytes), file_(file), at_(at) {}

  size_t at() const { return at_; }
  size_t left() const { return bytes_.size() - at_; }
  // Names the item being read ("key \"general.name\"") for error messages.
  void set_subject(std::string subject) { subject_ = std::move(subject); }

  template <class... Parts>
  [[noreturn]] void fail_at(ErrorCode code, size_t at, Parts&&... parts) const {
    fail(code, file_, ": at byte ", at, ": ", subject_, subject_.empty() ? "" : ": ", std::forward<Parts>(parts)...);
  }

  std::span<const std::byte> take(uint64_t n, const char* what);
  uint32_t u32(const char* what) { return number<uint32_t>(what); }
  uint64_t u64(const char* what) { return number<uint64_t>(what); }
  std::string_view string(const char* what);
  GgufType type(const char* what);
  GgufValue value(GgufType type, int depth = 0);

 private:
  template <class T>
  T number(const char* what) {
    T value;
    std::memcpy(&value, take(sizeof(T), what).data(), sizeof(T));
    return value;
  }
  void array(GgufValue& value, int depth);

  std::span<const std::byte> bytes_;
  std::string_view file_;
  std::string subject_;
  size_t at_;
};

}  // namespace lb
