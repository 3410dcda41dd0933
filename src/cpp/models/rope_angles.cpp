// Sources: "longrope" is from Ding et al., 2024 (arXiv 2402.13753); "llama3" is from the Llama 3.1 model card and
// transformers' rope utilities, "yarn" from Peng et al., 2023 (arXiv 2309.00071), with transformers' defaults in
// safetensors and llama.cpp's in GGUF. M-RoPE is from Qwen2-VL, interleaved as in Qwen3.5.
#include "models/rope_angles.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"

namespace lb {
namespace {

constexpr double kDefaultTheta = 10000;
constexpr double kMaxNumber = 1e12;

enum class Rule { kNone, kLinear, kLlama3, kYarn, kLong };

struct Scaling {
  Rule rule = Rule::kNone;
  double factor = 1;
  double original = 0;                    // context that the model was trained on, in tokens
  double low_turns = 1, high_turns = 32;  // YaRN's beta_slow and beta_fast, llama3's low_ and high_freq_factor
  bool rounds_range = true;               // YaRN: the ramp starts and ends at whole pairs
  double scale = 1;                       // of cos and sin
  bool is_original_given = false;
  std::vector<double> short_factors, long_factors;  // LongRoPE's divisors of each frequency
};

// --- the rules

// Keeps high frequencies, divides low ones by the factor and blends between. Turns are rotations over the original
// context.
double llama3(double freq, const Scaling& s) {
  const double turns = s.original * freq / (2 * std::numbers::pi);
  if (turns > s.high_turns) return freq;
  if (turns < s.low_turns) return freq / s.factor;
  const double blend = (turns - s.low_turns) / (s.high_turns - s.low_turns);
  return (1 - blend) * freq / s.factor + blend * freq;
}

// The fractional pair index that turns `turns` times over the original context.
double pair_of(double turns, const Scaling& s, double theta, int n_rot) {
  return n_rot * std::log(s.original / (turns * 2 * std::numbers::pi)) / (2 * std::log(theta));
}

// Like llama3, with a ramp that is linear in the pair index.
double yarn(double freq, int pair, const Scaling& s, double theta, int n_rot) {
  double first = pair_of(s.high_turns, s, theta, n_rot), last = pair_of(s.low_turns, s, theta, n_rot);
  if (s.rounds_range) first = std::floor(first), last = std::ceil(last);
  first = std::max(first, 0.0), last = std::min(last, n_rot - 1.0);
  const double ramp = std::clamp((pair - first) / std::max(last - first, 0.001), 0.0, 1.0);
  return freq / s.factor * ramp + freq * (1 - ramp);
}

// YaRN's attention factor (equation 22 of the paper), with DeepSeek's weight.
double attention_factor(double factor, double weight = 1) {
  return factor <= 1 ? 1 : 0.1 * weight * std::log(factor) + 1;
}

// LongRoPE's attention factor.
double long_attention_factor(double factor, double original) {
  return factor <= 1 ? 1 : std::sqrt(1 + std::log(factor) / std::log(original));
}

// --- config.json

bool is_plain(const std::string& type) { return type == "default" || type == "mrope"; }

// The objects of a config.json that describe the rope. Newer files may have one per layer type; this engine, which has
// one rope for all layers, accepts them only if they agree.
class Sections {
 public:
  explicit Sections(const Fields& fields) : fields_(fields) {
    if (fields.is_gguf()) return;
    for (const char* name : {"rope_parameters", "rope_scaling"}) {
      add(name, fields.hf(name));
      if (const Json* outer = fields.hf_wrapper(name)) add(name, outer);
    }
  }

  std::optional<double> find(const char* key, bool is_beside = false) const {
    const Json* found = nullptr;
    for (const Json* section : sections_) take(section->find(key), key, found);
    if (is_beside) take(fields_.hf(key), key, found);
    if (found == nullptr) return std::nullopt;
    return value(*found, key);
  }
  double number(const char* key) const {
    const std::optional<double> found = find(key);
    if (!found) fail(ErrorCode::kFormat, where(), ": rope scaling \"", type(), "\" needs ", key);
    return *found;
  }
  // Like transformers: 0 and null mean the default.
  double number(const char* key, double otherwise) const {
    for (const Json* section : sections_)
      if (const Json* json = section->find(key); json != nullptr && json->is_number() && json->number() == 0)
        return otherwise;
    return find(key).value_or(otherwise);
  }
  std::vector<double> list(const char* key) const {
    std::vector<double> values;
    for (const Json* section : sections_)
      if (const Json* found = section->find(key); found != nullptr && values.empty())
        for (const Json& one : found->array()) values.push_back(value(one, key));
    return values;
  }
  bool flag(const char* key, bool otherwise) const {
    for (const Json* section : sections_)
      if (const Json* found = section->find(key); found != nullptr && !found->is_null()) return found->boolean();
    return otherwise;
  }
  // The scaling rule; "default" if there is none.
  std::string type() const {
    const Json* found = nullptr;
    for (const Json* section : sections_) {
      const Json* json = section->find("rope_type");
      if (json == nullptr || json->is_null()) json = section->find("type");
      if (json == nullptr || json->is_null()) continue;
      if (is_plain(json->string()) && !is_per_layer_) continue;
      LB_CHECK(found == nullptr || found->string() == json->string(), kFormat, json->where(), ": rope scaling \"",
               json->string(), "\" contradicts \"", found->string(), "\" of another section of config.json (",
               found->where(), "); keep one");
      found = json;
    }
    return found == nullptr ? "default" : found->string();
  }
  std::string where() const { return sections_.empty() ? fields_.path() + "/config.json" : sections_.front()->where(); }

 private:
  void add(const char* name, const Json* section) {
    if (section == nullptr) return;
    LB_CHECK(section->is_object(), kFormat, section->where(), ": ", name, " must be an object");
    size_t n = 0;
    for (const Json::Member& member : section->members())
      if (member.value.is_object()) sections_.push_back(&member.value), ++n;
    is_per_layer_ |= n > 0;
    if (n == 0) sections_.push_back(section);
  }
  static double value(const Json& json, const char* key) {
    const double value = json.number();
    LB_CHECK(value > 0 && value < kMaxNumber, kFormat, json.where(), ": ", key, " must be positive, found ", value);
    return value;
  }
  static void take(const Json* json, const char* key, const Json*& found) {
    if (json == nullptr || json->is_null()) return;
    LB_CHECK(found == nullptr || value(*found, key) == value(*json, key), kFormat, json->where(), ": ", key, " is ",
             json->number(), ", and ", found->number(), " in another section of config.json (", found->where(),
             "); keep one");
    if (found == nullptr) found = json;
  }

  const Fields& fields_;
  std::vector<const Json*> sections_;
  bool is_per_layer_ = false;
};

Scaling hf_scaling(const Fields& fields) {
  const Sections sections(fields);
  const std::string type = sections.type();
  Scaling s;
  if (is_plain(type)) return s;
  const auto original = sections.find("original_max_position_embeddings", true);
  s.is_original_given = original.has_value();
  if (type == "linear") {
    s.rule = Rule::kLinear;
    s.factor = sections.number("factor");
  } else if (type == "llama3") {
    s.rule = Rule::kLlama3;
    s.factor = sections.number("factor");
    s.low_turns = sections.number("low_freq_factor");
    s.high_turns = sections.number("high_freq_factor");
    s.original = original ? *original : sections.number("original_max_position_embeddings");
    LB_CHECK(s.high_turns > s.low_turns, kFormat, sections.where(), ": high_freq_factor must be above low_freq_factor");
  } else if (type == "yarn") {
    const FieldName context{"", {"max_position_embeddings"}};
    s.rule = Rule::kYarn;
    s.original = original ? *original : fields.count(context);
    const auto factor = sections.find("factor");
    s.factor = factor || !original ? sections.number("factor") : fields.count(context) / *original;
    s.low_turns = sections.number("beta_slow", 1);
    s.high_turns = sections.number("beta_fast", 32);
    s.rounds_range = sections.flag("truncate", true);
    const double weight = sections.number("mscale", 0), weight_all = sections.number("mscale_all_dim", 0);
    const bool is_weighted = weight > 0 && weight_all > 0;
    s.scale = sections.number("attention_factor",
                              is_weighted ? attention_factor(s.factor, weight) / attention_factor(s.factor, weight_all)
                                          : attention_factor(s.factor));
    LB_CHECK(s.high_turns > s.low_turns, kFormat, sections.where(), ": beta_fast must be above beta_slow");
  } else if (type == "longrope" || type == "su") {
    const double context = fields.count({"", {"max_position_embeddings"}});
    s.rule = Rule::kLong;
    s.original = original ? *original : sections.number("original_max_position_embeddings");
    LB_CHECK(s.original > 1, kFormat, sections.where(), ": original_max_position_embeddings must be above 1");
    s.short_factors = sections.list("short_factor"), s.long_factors = sections.list("long_factor");
    s.scale = sections.number("attention_factor",
                              long_attention_factor(sections.number("factor", context / s.original), s.original));
  } else {
    fail(ErrorCode::kUnsupported, sections.where(), ": rope scaling \"", type,
         "\" is not supported; supported: default, linear, llama3, longrope, yarn");
  }
  return s;
}

// --- GGUF

// A number; files may write 0 or a negative number to mean "no effect".
double positive_or(const Fields& fields, const char* key, double otherwise) {
  const double value = fields.gguf()->find_float(fields.gguf_key(key)).value_or(otherwise);
  if (!std::isfinite(value)) fields.refuse({key, {}}, cat("must be a finite number, found ", value));
  return value > 0 ? value : otherwise;
}

Scaling gguf_scaling(const Fields& fields) {
  const FieldName type_name{"rope.scaling.type", {}}, factor_name{"rope.scaling.factor", {}};
  const std::optional<std::string> type = fields.find_string(type_name);
  Scaling s;
  s.scale = positive_or(fields, "rope.scaling.attn_factor", 1);
  if (type == "longrope") s.rule = Rule::kLong;  // read_long_factors() reads the rest
  if (type == "none" || type == "longrope") return s;
  LB_CHECK(!type || type == "linear" || type == "yarn", kUnsupported, fields.where(type_name), ": rope scaling \"",
           *type, "\" is not supported; supported: none, linear, longrope, yarn, and factors in rope_freqs.weight");
  // Files without a type mean "linear"; the oldest ones call the factor scale_linear. 0 means 1.
  s.factor = positive_or(fields, factor_name.gguf, positive_or(fields, "rope.scale_linear", type ? 0 : 1));
  if (s.factor == 0) {
    if (fields.gguf()->contains(fields.gguf_key(factor_name.gguf))) return s;
    fields.refuse(factor_name, cat("is missing; rope scaling \"", *type, "\" needs it"));
  }
  s.rule = type == "yarn" ? Rule::kYarn : Rule::kLinear;
  if (s.rule == Rule::kLinear) return s;
  const auto original = fields.find_count({"rope.scaling.original_context_length", {}});
  s.is_original_given = original.has_value();
  s.original = original ? *original : fields.count({"context_length", {}});
  s.low_turns = positive_or(fields, "rope.scaling.yarn_beta_slow", 1);
  s.high_turns = positive_or(fields, "rope.scaling.yarn_beta_fast", 32);
  if (s.high_turns <= s.low_turns)
    fields.refuse({"rope.scaling.yarn_beta_fast", {}}, cat("must be above yarn_beta_slow, ", s.low_turns));
  for (const char* key : {"rope.scaling.yarn_ext_factor", "rope.scaling.yarn_attn_factor"})
    if (positive_or(fields, key, 1) != 1) fields.refuse({key, {}}, "is not 1; that is not supported");
  const double weight = positive_or(fields, "rope.scaling.yarn_log_multiplier", 0);
  s.scale *= attention_factor(s.factor) / (weight > 0 ? attention_factor(s.factor, weight) : 1);
  return s;
}

Scaling read_scaling(const Fields& fields) { return fields.is_gguf() ? gguf_scaling(fields) : hf_scaling(fields); }

// The factors of LongRoPE, which GGUF files have in two tensors.
void read_long_factors(const Fields& fields, Binder& binder, int pairs, Scaling& s) {
  const TensorName shorter{"rope_factors_short.weight", ""}, longer{"rope_factors_long.weight", ""};
  if (fields.is_gguf() && binder.has(longer)) {
    s.rule = Rule::kLong;
    s.original = fields.count({"rope.scaling.original_context_length", {}});
    for (auto [name, factors] : {std::pair(shorter, &s.short_factors), std::pair(longer, &s.long_factors)}) {
      const float* values = binder.vector(name, pairs);
      factors->assign(values, values + pairs);
      LB_CHECK(std::ranges::all_of(*factors, [](double f) { return f > 0; }), kFormat, fields.path(), ": ", name.gguf,
               ": factors must be positive");
    }
  }
  if (s.rule != Rule::kLong) return;
  for (const auto* factors : {&s.short_factors, &s.long_factors})
    LB_CHECK(factors->size() == static_cast<size_t>(pairs), kFormat, fields.path(), ": LongRoPE needs ", pairs,
             " short and long factors, found ", factors->size());
}

// Divides each frequency by its factor in the GGUF file.
void divide_by_factors(const Fields& fields, Binder& binder, std::vector<double>& freqs) {
  const TensorName factors{"rope_freqs.weight", ""};
  if (!fields.is_gguf() || !binder.has(factors)) return;
  const float* divide = binder.vector(factors, static_cast<int>(freqs.size()));
  for (size_t i = 0; i < freqs.size(); ++i) {
    LB_CHECK(divide[i] > 0, kFormat, fields.path(), ": rope_freqs.weight: factor ", i, " must be positive, found ",
             divide[i]);
    freqs[i] /= divide[i];
  }
}

}  // namespace

std::optional<double> find_rope_theta(const Fields& fields) {
  if (fields.is_gguf()) return fields.find_positive({"rope.freq_base", {}});
  return Sections(fields).find("rope_theta", true);
}

std::optional<double> find_rotary_part(const Fields& fields) {
  return Sections(fields).find("partial_rotary_factor", true);
}

int scaled_context(const Fields& fields, int context) {
  const Scaling s = read_scaling(fields);
  if (s.rule != Rule::kYarn || !s.is_original_given) return context;
  constexpr double kMaxContext = 1 << 24;
  return std::max(context, static_cast<int>(std::min(s.factor * s.original, kMaxContext)));
}

RopeAngles rope_angles(const Fields& fields, Binder& binder, int n_rot, std::span<const int> mrope_sections,
                       YarnRange gguf_range) {
  const int pairs = n_rot / 2;
  const double theta = find_rope_theta(fields).value_or(kDefaultTheta);
  Scaling s = read_scaling(fields);
  if (fields.is_gguf()) s.rounds_range = gguf_range == YarnRange::kWholePairs;
  LB_CHECK(s.rule != Rule::kYarn || theta > 1, kFormat, fields.path(), ": YaRN needs a rope theta above 1, found ",
           theta);
  std::vector<double> freqs;
  for (int i = 0; i < pairs; ++i) freqs.push_back(std::pow(theta, -2.0 * i / n_rot));
  divide_by_factors(fields, binder, freqs);
  read_long_factors(fields, binder, pairs, s);
  RopeAngles angles;
  angles.scale = static_cast<float>(s.scale);
  for (int i = 0; i < pairs; ++i) {
    double freq = freqs[i];
    if (s.rule == Rule::kLinear) freq /= s.factor;
    if (s.rule == Rule::kLong) {
      angles.long_inv_freq.push_back(static_cast<float>(freq / s.long_factors[i]));
      angles.long_from = static_cast<int>(s.original);
      freq /= s.short_factors[i];
    }
    if (s.rule == Rule::kLlama3) freq = llama3(freq, s);
    if (s.rule == Rule::kYarn) freq = yarn(freq, i, s, theta, n_rot);
    angles.inv_freq.push_back(static_cast<float>(freq));
    int axis = 0;
    if (!mrope_sections.empty() && i % 3 != 0 && i < 3 * mrope_sections[i % 3]) axis = i % 3;
    angles.axis.push_back(static_cast<uint8_t>(axis));
  }
  return angles;
}

RopeAngles query_angles(const RopeAngles& angles, const QueryScale& scale, int max_context) {
  RopeAngles own = angles;
  own.period = scale.period;
  for (int i = 0; i <= max_context / scale.period; ++i)
    own.row_scales.push_back(static_cast<float>(1 + scale.factor * std::log1p(double(i))));
  return own;
}

}  // namespace lb
