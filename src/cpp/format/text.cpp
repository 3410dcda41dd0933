// Checks UTF-8 against the table of well-formed byte sequences (Unicode 15, table 3-7).
#include "format/text.h"

#include <algorithm>
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

// Control characters (C0, DEL, C1), and marks that reorder text in a terminal (U+061C, U+200E, U+200F, U+202A to
// U+202E, U+2066 to U+2069). `code`: one well-formed sequence.
bool is_control(std::string_view code) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(code[i]); };
  if (code.size() == 1) return byte(0) < 0x20 || byte(0) == 0x7F;
  if (code.size() == 2) return (byte(0) == 0xC2 && byte(1) < 0xA0) || code == "\u061C";
  if (code.size() != 3 || byte(0) != 0xE2) return false;
  return (byte(1) == 0x80 && (byte(2) == 0x8E || byte(2) == 0x8F || (byte(2) >= 0xAA && byte(2) <= 0xAE))) ||
         (byte(1) == 0x81 && byte(2) >= 0xA6 && byte(2) <= 0xA9);
}

}  // namespace

std::string_view foreign_content(std::string_view bytes) {
  if (bytes.starts_with("version https://git-lfs.github.com/spec/"))
    return "it is a Git LFS pointer, not the file itself; fetch it with: git lfs pull";
  const size_t first = bytes.substr(0, 64).find_first_not_of(" \t\r\n");
  std::string start(first == std::string_view::npos ? std::string_view() : bytes.substr(first, 14));
  for (char& c : start) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  if (start.starts_with("<!doctype html") || start.starts_with("<html"))
    return "it is a web page, saved in place of the file; download the file itself";
  if (bytes.starts_with("PK\x03\x04"))
    return "it is a zip file, such as PyTorch's pickled weights; convert it to safetensors or GGUF";
  if (bytes.starts_with("\xff\xfe") || bytes.starts_with("\xfe\xff"))
    return "it is UTF-16 text; convert it, for example: iconv -f utf-16 -t utf-8";
  return {};
}

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
    if (length == 0 || is_control(text.substr(at, length))) {
      for (const char c : text.substr(at, std::max<size_t>(length, 1))) {
        const auto byte = static_cast<uint8_t>(c);
        out += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
      }
      at += std::max<size_t>(length, 1);
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
