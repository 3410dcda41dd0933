// Text from untrusted files: UTF-8 validation, and escaping for messages.
#pragma once

#include <string>
#include <string_view>

namespace lb {

// Strict: no overlong forms, no surrogates, nothing above U+10FFFF.
bool is_utf8(std::string_view text);

// `text` as one line of valid UTF-8: control bytes and malformed sequences become \xNN.
std::string printable(std::string_view text);
// printable() in double quotes, truncated after 200 bytes.
std::string quoted(std::string_view text);

}  // namespace lb
