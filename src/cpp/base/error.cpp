// Builds the texts of errors.
#include "base/error.h"

#include <sstream>

namespace lb {

void Part::write_text(std::ostream& out, const void* text) { out << static_cast<const char*>(text); }

std::string text_of(Parts parts) {
  std::ostringstream out;
  for (const Part& part : parts) part.write_(out, part.value_);
  return out.str();
}

void fail_with(ErrorCode code, Parts parts) { throw Error(code, text_of(parts)); }

void assertion_failed(const char* what, std::source_location where) {
  fail(ErrorCode::kInternal, where.file_name(), ":", where.line(), ": ", what);
}

}  // namespace lb
