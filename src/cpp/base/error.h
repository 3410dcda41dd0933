// The engine's only error type and the two checks that throw it.
// Bindings map ErrorCode to Python exceptions; nothing below the bindings prints or exits.
#pragma once

#include <initializer_list>
#include <ostream>
#include <source_location>
#include <stdexcept>
#include <string>

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

// One value of an error message, printed with operator<<. A failed check passes a list of Parts to one function that
// builds the text, so the hundreds of checks compile no stream code.
class Part {
 public:
  Part(const char* text) : value_(text), write_(write_text) {}
  template <class T>
  Part(const T& value)
      : value_(&value), write_([](std::ostream& out, const void* value) { out << *static_cast<const T*>(value); }) {}

 private:
  friend std::string text_of(std::initializer_list<Part>);
  static void write_text(std::ostream& out, const void* text);

  const void* value_;
  void (*write_)(std::ostream& out, const void* value);
};
using Parts = std::initializer_list<Part>;

std::string text_of(Parts parts);
[[noreturn]] void fail_with(ErrorCode code, Parts parts);
[[noreturn]] void assertion_failed(const char* what, std::source_location where = std::source_location::current());

// Concatenates its arguments with operator<<.
template <class... Values>
std::string cat(const Values&... values) {
  return text_of({values...});
}

template <class... Values>
[[noreturn]] void fail(ErrorCode code, const Values&... values) {
  fail_with(code, {values...});
}

}  // namespace lb

// Input checks: the message names the expected value, the actual value and the location.
#define LB_CHECK(condition, code, ...)                                       \
  do {                                                                       \
    if (!(condition)) ::lb::fail_with(::lb::ErrorCode::code, {__VA_ARGS__}); \
  } while (0)

// Checks of internal invariants.
#define LB_ASSERT(condition)                              \
  do {                                                    \
    if (!(condition)) ::lb::assertion_failed(#condition); \
  } while (0)
