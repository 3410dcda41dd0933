// The engine's only error type and the two checks that throw it.
// Bindings map ErrorCode to Python exceptions; nothing below the bindings prints or exits.
#pragma once

#include <source_location>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>

namespace lb {

enum class ErrorCode {
  kFormat,       // a file is truncated, inconsistent or hostile
  kUnsupported,  // the file or request is valid, but this engine does not implement it
  kInvalid,      // the caller passed an argument out of range
  kMemory,       // the plan does not fit, or an allocation failed
  kIo,           // the operating system refused a file operation
  kDevice,       // a GPU, its driver or its library is missing, too old or failed
  kCancelled,    // the caller interrupted the work
  kInternal,     // our bug
};

class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

// Concatenates its arguments with operator<<.
template <class... Parts>
std::string cat(Parts&&... parts) {
  std::ostringstream out;
  (out << ... << std::forward<Parts>(parts));
  return out.str();
}

template <class... Parts>
[[noreturn]] void fail(ErrorCode code, Parts&&... parts) {
  throw Error(code, cat(std::forward<Parts>(parts)...));
}

[[noreturn]] inline void assertion_failed(const char* what,
                                          std::source_location where = std::source_location::current()) {
  fail(ErrorCode::kInternal, where.file_name(), ":", where.line(), ": ", what);
}

}  // namespace lb

// Input checks: the message names the expected value, the actual value and the place.
#define LB_CHECK(condition, code, ...)                                \
  do {                                                                \
    if (!(condition)) ::lb::fail(::lb::ErrorCode::code, __VA_ARGS__); \
  } while (0)

// Checks of our own invariants.
#define LB_ASSERT(condition)                              \
  do {                                                    \
    if (!(condition)) ::lb::assertion_failed(#condition); \
  } while (0)
