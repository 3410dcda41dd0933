#include "bindings/options.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <limits>
#include <tuple>

#include "base/error.h"

namespace nb = nanobind;

namespace lb {
namespace {

// An option: its Python name and its C++ member.
template <class Struct, class T>
struct Field {
  const char* name;
  T Struct::* member;
};

constexpr std::tuple kModelFields{
    Field{"context", &ModelOptions::context},
    Field{"threads", &ModelOptions::n_threads},
    Field{"isa", &ModelOptions::isa},
    Field{"activations", &ModelOptions::activations},
    Field{"kv", &ModelOptions::kv},
    Field{"prefill_chunk", &ModelOptions::prefill_chunk},
    Field{"memory_limit", &ModelOptions::memory_limit},
};

constexpr std::tuple kEngineFields =
    std::tuple_cat(kModelFields, std::tuple{
                                     Field{"kv_tokens", &EngineOptions::kv_tokens},
                                     Field{"sessions", &EngineOptions::sessions},
                                     Field{"decode_path", &EngineOptions::path},
                                     Field{"draft", &EngineOptions::draft},
                                     Field{"draft_budget", &EngineOptions::draft_budget},
                                     Field{"sparse_prefill", &EngineOptions::sparse_prefill},
                                     Field{"batch_invariant", &EngineOptions::batch_invariant},
                                 });

constexpr std::tuple kScorerFields =
    std::tuple_cat(kModelFields, std::tuple{
                                     Field{"score_rows", &ScorerOptions::rows},
                                     Field{"prefill_sparse_alpha", &ScorerOptions::sparse_alpha},
                                 });

constexpr std::tuple kSamplingFields{
    Field{"temperature", &SamplingParams::temperature},
    Field{"top_k", &SamplingParams::top_k},
    Field{"top_p", &SamplingParams::top_p},
    Field{"min_p", &SamplingParams::min_p},
    Field{"typical_p", &SamplingParams::typical_p},
    Field{"repetition_penalty", &SamplingParams::repetition_penalty},
    Field{"frequency_penalty", &SamplingParams::frequency_penalty},
    Field{"presence_penalty", &SamplingParams::presence_penalty},
    Field{"penalty_window", &SamplingParams::penalty_window},
    Field{"logit_bias", &SamplingParams::logit_bias},
    Field{"seed", &SamplingParams::seed},
    Field{"logprobs", &SamplingParams::n_top},
};

// The words of an enumeration. If two words have the same value, the last one is used for output.
template <class Enum>
using Words = std::vector<std::pair<const char*, Enum>>;

template <class Enum>
Words<Enum> words();
template <>
Words<Isa> words() {
  return {{"auto", best_isa()},
          {"scalar", Isa::kScalar},
          {"portable", Isa::kPortable},
          {"avx2", Isa::kAvx2},
          {"avx512", Isa::kAvx512}};
}
template <>
Words<Activations> words() {
  return {{"int8", Activations::kInt8}, {"f32", Activations::kF32}};
}
template <>
Words<DecodePath> words() {
  return {{"auto", DecodePath::kAuto}, {"graph", DecodePath::kGraph}, {"megakernel", DecodePath::kMegakernel}};
}

// "auto, graph or megakernel"
template <class Enum>
std::string listed(const Words<Enum>& words) {
  std::string text;
  for (size_t i = 0; i < words.size(); ++i)
    text += cat(i == 0 ? "" : i + 1 < words.size() ? ", " : " or ", words[i].first);
  return text;
}

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
    const Words<T> known = words<T>();
    const auto found = std::ranges::find(known, text, [](const auto& word) { return std::string_view(word.first); });
    LB_CHECK(found != known.end(), kInvalid, name, " must be ", listed(known), ", got \"", text, "\"");
    *member = found->second;
  } else {
    cast_to(member, name, value);
  }
}

// A mapping keyed by token ids, or its items.
void read(std::vector<std::pair<int32_t, float>>* member, const char* name, nb::handle value) {
  const nb::object items = nb::hasattr(value, "items") ? nb::list(value.attr("items")()) : nb::borrow(value);
  LB_CHECK(nb::try_cast(items, *member), kInvalid, name, " must give a number to each of some token ids, got ",
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

// owner: "the engine", for errors.
template <class Struct, class... Fields>
Struct filled(Struct result, const nb::kwargs& options, const std::tuple<Fields...>& fields, const char* owner) {
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
  } else if constexpr (std::is_same_v<T, KvTypes>) {
    return nb::str(to_string(value).c_str());
  } else {
    return nb::cast(value);
  }
}

template <class Struct, class... Fields>
nb::dict dict_of(const Struct& options, const std::tuple<Fields...>& fields) {
  nb::dict result;
  const auto add = [&](const auto& field) { result[field.name] = object_of(options.*field.member); };
  std::apply([&](const auto&... field) { (add(field), ...); }, fields);
  return result;
}

}  // namespace

EngineOptions engine_options_of(const nb::kwargs& options) {
  EngineOptions defaults;
  defaults.isa = best_isa();
  return filled(defaults, options, kEngineFields, "the engine");
}

ScorerOptions scorer_options_of(const nb::kwargs& options) {
  ScorerOptions defaults;
  defaults.isa = best_isa();
  return filled(defaults, options, kScorerFields, "the scorer");
}

SamplingParams sampling_params_of(const nb::kwargs& options) {
  return filled(SamplingParams{}, options, kSamplingFields, "the engine");
}

nb::dict dict_of(const EngineOptions& options) { return dict_of(options, kEngineFields); }
nb::dict dict_of(const ScorerOptions& options) { return dict_of(options, kScorerFields); }

}  // namespace lb
