// Elements of the option tables (option_rows.h), and the enumerations that Python names by words.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/error.h"

namespace lb {

// An option: its Python name, its C++ member, and the value that is None in Python.
template <class Struct, class T>
struct Field {
  const char* name;
  T Struct::* member;
  std::optional<std::type_identity_t<T>> none = std::nullopt;
};

// The words of an enumeration. If two words have the same value, the last one is used for output.
template <class Enum>
using Words = std::vector<std::pair<const char*, Enum>>;

template <class Enum>
Words<Enum> words();

// The value of a word. Throws kInvalid, naming the option and its words.
template <class Enum>
Enum value_of(const char* option, std::string_view word) {
  const Words<Enum> known = words<Enum>();
  const auto found = std::ranges::find(known, word, [](const auto& one) { return std::string_view(one.first); });
  if (found != known.end()) return found->second;
  std::string listed;  // "auto, graph or megakernel"
  for (size_t i = 0; i < known.size(); ++i)
    listed += cat(i == 0 ? "" : i + 1 < known.size() ? ", " : " or ", known[i].first);
  fail(ErrorCode::kInvalid, option, " must be ", listed, ", got \"", word, "\"");
}

}  // namespace lb
