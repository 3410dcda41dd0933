#include "bindings/options.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <limits>
#include <tuple>

#include "base/error.h"
#include "bindings/option_rows.h"

namespace nb = nanobind;

namespace lb {
namespace {

const std::tuple kEngineRows = std::tuple_cat(kModelOptions, kEngineFields);
const std::tuple kScorerRows =
    std::tuple_cat(kModelOptions, kScorerFields, std::tuple{Field{"score_rows", &ScorerOptions::score_rows}});

template <class T>
void cast_to(T* member, const char* name, nb::handle value) {
  if (nb::try_cast(value, *member)) return;
  if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
    using Limits = std::numeric_limits<T>;
    LB_CHECK(!PyLong_Check(value.ptr()), kInvalid, name, " must be between ", Limits::min(), " and ", Limits::max(),
             ", got ", nb::repr(value).c_str());
  }
  if constexpr (std::is_floating_point_v<T>) LB_CHECK(!PyLong_Check(value.ptr()), kInvalid, name, " is out of range");
  throw nb::type_error(cat("the option ", name, " cannot be ", nb::repr(value).c_str()).c_str());
}

template <class T>
void read(T* member, const char* name, nb::handle value) {
  if constexpr (std::is_enum_v<T>) {
    std::string text;
    cast_to(&text, name, value);
    *member = value_of<T>(name, text);
  } else {
    cast_to(member, name, value);
  }
}

// A mapping keyed by token ids, or its items.
void read(std::vector<std::pair<int32_t, float>>* member, const char* name, nb::handle value) {
  const nb::object items = nb::hasattr(value, "items") ? nb::list(value.attr("items")()) : nb::borrow(value);
  LB_CHECK(nb::try_cast(items, *member), kInvalid, name, " must map token ids to numbers, got ",
           nb::repr(value).c_str());
}

// A KV type such as "q8_0", or two as "K/V".
void read(KvTypes* member, const char* name, nb::handle value) {
  std::string text;
  cast_to(&text, name, value);
  const auto types = kv_types_from_text(text);
  LB_CHECK(types, kInvalid, name, " must be ", kv_names(), ", or two of them as K/V, got \"", text, "\"");
  *member = *types;
}

// "auto", "layer", "tensor", or shares such as "3,1".
void read(SplitChoice* member, const char* name, nb::handle value) {
  std::string text;
  cast_to(&text, name, value);
  const auto choice = split_from_text(text);
  LB_CHECK(choice, kInvalid, name, " must be auto, layer, tensor, or a share from 1 to 1000 for each device, as 3,1; ",
           "got \"", text, "\"");
  *member = *choice;
}

// owner: "the engine", for errors.
template <class Struct, class... Fields>
Struct from_keywords(Struct result, const nb::kwargs& options, const std::tuple<Fields...>& fields, const char* owner) {
  std::vector<std::string_view> names;
  const auto fill = [&](const auto& field) {
    names.push_back(field.name);
    if (!options.contains(field.name)) return;
    const nb::object value = options[field.name];
    if (!value.is_none()) read(&(result.*field.member), field.name, value);
  };
  std::apply([&](const auto&... field) { (fill(field), ...); }, fields);
  for (const auto& [key, value] : options)
    if (const auto name = nb::cast<std::string>(key); std::ranges::find(names, name) == names.end())
      throw nb::type_error(cat(owner, " has no option ", name).c_str());
  return result;
}

template <class T>
nb::object object_of(const T& value) {
  if constexpr (std::is_enum_v<T>) {
    nb::object name = nb::none();
    for (const auto& [word, meant] : words<T>())
      if (meant == value) name = nb::str(word);
    return name;
  } else if constexpr (std::is_same_v<T, KvTypes> || std::is_same_v<T, SplitChoice>) {
    return nb::str(to_string(value).c_str());
  } else {
    return nb::cast(value);
  }
}

template <class Struct, class... Fields>
nb::dict dict_of(const Struct& options, const std::tuple<Fields...>& fields) {
  nb::dict result;
  const auto add = [&](const auto& field) {
    const auto& value = options.*field.member;
    result[field.name] = value == field.none ? nb::none() : object_of(value);
  };
  std::apply([&](const auto&... field) { (add(field), ...); }, fields);
  return result;
}

}  // namespace

EngineOptions engine_options_of(const nb::kwargs& options) {
  return from_keywords(EngineOptions{}, options, kEngineRows, "the engine");
}

ScorerOptions scorer_options_of(const nb::kwargs& options) {
  return from_keywords(ScorerOptions{}, options, kScorerRows, "the scorer");
}

SamplingParams sampling_params_of(const nb::kwargs& options) {
  return from_keywords(SamplingParams{}, options, kSamplingParams, "the engine");
}

nb::dict dict_of(const EngineOptions& options) { return dict_of(options, kEngineRows); }
nb::dict dict_of(const ScorerOptions& options) { return dict_of(options, kScorerRows); }

}  // namespace lb
