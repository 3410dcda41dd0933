// Sources: "llama3" is from the Llama 3.1 model card and transformers' rope utilities, M-RoPE from Qwen2-VL,
// interleaved as in Qwen3.5.
#include "models/rope_angles.h"

#include <cmath>
#include <numbers>

#include "base/error.h"

namespace lb {
namespace {

const FieldName kTheta{"rope.freq_base", {"rope_parameters.rope_theta", "rope_theta"}};

// Keeps high frequencies, divides low ones by `factor` and blends between. `low` and `high` are rotations over the
// original context.
double llama3(double freq, double factor, double low, double high, double original) {
  const double turns = original * freq / (2 * std::numbers::pi);
  if (turns > high) return freq;
  if (turns < low) return freq / factor;
  const double blend = (turns - low) / (high - low);
  return (1 - blend) * freq / factor + blend * freq;
}

const Json* scaling_section(const Fields& fields) {
  for (const char* path : {"rope_parameters", "rope_scaling"})
    if (const Json* section = fields.hf(path)) return section;
  return nullptr;
}

double number(const Json& section, const char* key) {
  const double value = section.at(key).number();
  LB_CHECK(value > 0 && value < 1e12, kFormat, section.at(key).where(), ": ", key, " must be positive, found ", value);
  return value;
}

void scale_hf(const Fields& fields, std::vector<float>& inv_freq) {
  const Json* section = scaling_section(fields);
  if (section == nullptr || !section->is_object()) return;
  const Json* type = section->find("rope_type");
  if (type == nullptr) type = section->find("type");
  if (type == nullptr || type->string() == "default") return;
  if (type->string() == "linear") {
    const double factor = number(*section, "factor");
    for (float& f : inv_freq) f = static_cast<float>(f / factor);
  } else if (type->string() == "llama3") {
    const double factor = number(*section, "factor"), low = number(*section, "low_freq_factor"),
                 high = number(*section, "high_freq_factor"),
                 original = number(*section, "original_max_position_embeddings");
    LB_CHECK(high > low, kFormat, section->where(), ": high_freq_factor must be above low_freq_factor");
    for (float& f : inv_freq) f = static_cast<float>(llama3(f, factor, low, high, original));
  } else {
    fail(ErrorCode::kUnsupported, type->where(), ": rope scaling \"", type->string(),
         "\" is not supported; supported: default, linear, llama3");
  }
}

void scale_gguf(const Fields& fields, Binder& binder, std::vector<float>& inv_freq) {
  const FieldName type_name{"rope.scaling.type", {}};
  const std::string type = fields.find_string(type_name).value_or("none");
  if (type == "linear") {
    const float factor = fields.positive({"rope.scaling.factor", {}});
    for (float& f : inv_freq) f /= factor;
  } else if (type != "none") {
    fail(ErrorCode::kUnsupported, fields.where(type_name), ": rope scaling \"", type,
         "\" is not supported; supported: none, linear, and factors in rope_freqs.weight");
  }
  const TensorName factors{"rope_freqs.weight", ""};
  if (!binder.has(factors)) return;
  const float* divide = binder.vector(factors, static_cast<int>(inv_freq.size()));
  for (size_t i = 0; i < inv_freq.size(); ++i) {
    LB_CHECK(divide[i] > 0, kFormat, fields.path(), ": rope_freqs.weight: factor ", i, " must be positive, found ",
             divide[i]);
    inv_freq[i] /= divide[i];
  }
}

}  // namespace

RopeAngles rope_angles(const Fields& fields, Binder& binder, int n_rot, std::span<const int> mrope_sections) {
  const int pairs = n_rot / 2;
  const double theta = fields.positive(kTheta, 10000.0f);
  RopeAngles angles;
  for (int i = 0; i < pairs; ++i) {
    angles.inv_freq.push_back(static_cast<float>(std::pow(theta, -2.0 * i / n_rot)));
    int axis = 0;
    if (!mrope_sections.empty() && i % 3 != 0 && i < 3 * mrope_sections[i % 3]) axis = i % 3;
    angles.axis.push_back(static_cast<uint8_t>(axis));
  }
  if (fields.is_gguf()) {
    scale_gguf(fields, binder, angles.inv_freq);
  } else {
    scale_hf(fields, angles.inv_freq);
  }
  return angles;
}

}  // namespace lb
