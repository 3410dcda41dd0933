// Text that came out of a file: is it UTF-8, and how to show it in a message without trusting it.
#pragma once

#include <string>
#include <string_view>

namespace lb {

// Strict: no overlong forms, no surrogates, nothing above U+10FFFF.
bool is_utf8(std::string_view text);

// `text` as one line of valid UTF-8: control bytes and broken sequences become \xNN.
std::string printable(std::string_view text);
// The same in double quotes, cut where it is longer than a message should be.
std::string quoted(std::string_view text);

}  // namespace lb
