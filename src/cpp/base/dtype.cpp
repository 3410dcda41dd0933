// Table of element types; sizes as in the GGML block layouts (see quant/blocks.h).
#include "base/dtype.h"

#include "base/error.h"

namespace lb {
namespace {

constexpr DTypeInfo kTable[kDTypeCount] = {
    {"F32", 0, 1, 4},       {"F16", 1, 1, 2},       {"BF16", 30, 1, 2},       {"Q4_0", 2, 32, 18},
    {"Q4_1", 3, 32, 20},    {"Q5_0", 6, 32, 22},    {"Q5_1", 7, 32, 24},      {"Q8_0", 8, 32, 34},
    {"Q2_K", 10, 256, 84},  {"Q3_K", 11, 256, 110}, {"Q4_K", 12, 256, 144},   {"Q5_K", 13, 256, 176},
    {"Q6_K", 14, 256, 210}, {"IQ4_NL", 20, 32, 18}, {"IQ4_XS", 23, 256, 136}, {"MXFP4", 39, 32, 17},
};

// Named in messages only.
struct UnsupportedType {
  uint32_t ggml_id;
  std::string_view name;
};
constexpr UnsupportedType kUnsupportedTypes[] = {
    {9, "Q8_1"},   {15, "Q8_K"},  {16, "IQ2_XXS"}, {17, "IQ2_XS"}, {18, "IQ3_XXS"}, {19, "IQ1_S"},
    {21, "IQ3_S"}, {22, "IQ2_S"}, {24, "I8"},      {25, "I16"},    {26, "I32"},     {27, "I64"},
    {28, "F64"},   {29, "IQ1_M"}, {34, "TQ1_0"},   {35, "TQ2_0"},  {40, "NVFP4"},
};

}  // namespace

const DTypeInfo& info(DType type) {
  LB_ASSERT(static_cast<int>(type) < kDTypeCount);
  return kTable[static_cast<int>(type)];
}

std::optional<DType> dtype_from_ggml(uint32_t ggml_id) {
  for (int i = 0; i < kDTypeCount; ++i)
    if (kTable[i].ggml_id == ggml_id) return static_cast<DType>(i);
  return std::nullopt;
}

std::optional<DType> dtype_from_name(std::string_view name) {
  for (int i = 0; i < kDTypeCount; ++i)
    if (kTable[i].name == name) return static_cast<DType>(i);
  return std::nullopt;
}

std::string_view ggml_type_name(uint32_t ggml_id) {
  if (auto type = dtype_from_ggml(ggml_id)) return info(*type).name;
  for (const UnsupportedType& type : kUnsupportedTypes)
    if (type.ggml_id == ggml_id) return type.name;
  return {};
}

}  // namespace lb
