// Text from untrusted files: UTF-8 validation, and escaping for messages.
#pragma once

#include <string>
#include <string_view>

namespace lb {

// Strict: no overlong forms, no surrogates, nothing above U+10FFFF.
bool is_utf8(std::string_view text);

// Names a known placeholder for a file and how to get its content: "it is a Git LFS pointer ...". Empty: none.
std::string_view foreign_content(std::string_view bytes);

// `text` as one line of valid UTF-8: malformed sequences, control characters and marks that reorder text in a terminal
// become \xNN.
std::string printable(std::string_view text);
// printable() in double quotes, truncated after 200 bytes.
std::string quoted(std::string_view text);

}  // namespace lb
