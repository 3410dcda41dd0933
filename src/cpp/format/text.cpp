// Checks UTF-8 against the table of well-formed byte sequences (Unicode 15, table 3-7).
#include "format/text.h"

#include <cstddef>
#include <cstdint>

namespace lb {
namespace {

constexpr size_t kMaxShown = 200;

// Length of the well-formed sequence at text[at], 0 if there is none.
size_t sequence_length(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<uint8_t>(text[i]) : uint8_t{0}; };
  const auto in = [](uint8_t value, uint8_t low, uint8_t high) { return low <= value && value <= high; };
  const uint8_t lead = byte(at);
  if (lead < 0x80) return 1;
  if (in(lead, 0xC2, 0xDF)) return in(byte(at + 1), 0x80, 0xBF) ? 2 : 0;
  if (in(lead, 0xE0, 0xEF)) {
    const uint8_t low = lead == 0xE0 ? 0xA0 : 0x80, high = lead == 0xED ? 0x9F : 0xBF;
    return in(byte(at + 1), low, high) && in(byte(at + 2), 0x80, 0xBF) ? 3 : 0;
  }
  if (in(lead, 0xF0, 0xF4)) {
    const uint8_t low = lead == 0xF0 ? 0x90 : 0x80, high = lead == 0xF4 ? 0x8F : 0xBF;
    return in(byte(at + 1), low, high) && in(byte(at + 2), 0x80, 0xBF) && in(byte(at + 3), 0x80, 0xBF) ? 4 : 0;
  }
  return 0;
}

}  // namespace

bool is_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const size_t length = sequence_length(text, at);
    if (length == 0) return false;
    at += length;
  }
  return true;
}

std::string printable(std::string_view text) {
  constexpr char kHex[] = "0123456789abcdef";
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t length = sequence_length(text, at);
    const auto lead = static_cast<uint8_t>(text[at]);
    if (length == 0 || lead < 0x20 || lead == 0x7F) {
      out += {'\\', 'x', kHex[lead >> 4], kHex[lead & 15]};
      at += 1;
    } else {
      out += text.substr(at, length);
      at += length;
    }
  }
  return out;
}

std::string quoted(std::string_view text) {
  if (text.size() <= kMaxShown) return '"' + printable(text) + '"';
  size_t cut = kMaxShown;
  while (cut > kMaxShown - 4 && (static_cast<uint8_t>(text[cut]) & 0xC0) == 0x80) --cut;  // not inside a code point
  return '"' + printable(text.substr(0, cut)) + "...\"";
}

}  // namespace lb
