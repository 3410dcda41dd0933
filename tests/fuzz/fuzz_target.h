// The interface of a fuzz target: valid seed inputs, and libFuzzer's entry point.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"

std::vector<std::string> seed_inputs();
// Returns 0 when the parser accepted the input, -1 when it rejected the input.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

// A copy of the input in a heap block of exactly its size, so that the sanitizer detects reads past its end.
class HeapCopy {
 public:
  HeapCopy(const uint8_t* data, size_t size) : data_(static_cast<std::byte*>(std::malloc(size))), size_(size) {
    if (size > 0) std::memcpy(data_.get(), data, size);
  }
  std::span<const std::byte> bytes() const { return {data_.get(), size_}; }
  std::string_view text() const { return {reinterpret_cast<const char*>(data_.get()), size_}; }

 private:
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  std::unique_ptr<std::byte, Free> data_;
  size_t size_;
};

inline void require(bool condition) {
  if (!condition) std::abort();
}

// Runs a parser, which may throw only errors about the input. Returns whether the parser accepted the input.
template <class Parse>
bool refuse_or_parse(Parse&& parse) {
  try {
    parse();
    return true;
  } catch (const lb::Error& error) {
    require(error.code() == lb::ErrorCode::kFormat || error.code() == lb::ErrorCode::kUnsupported);
    require(std::string_view(error.what()).starts_with("input") || std::strstr(error.what(), "in input"));
    return false;
  }
}
