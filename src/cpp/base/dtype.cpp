// Table of element types; sizes as in the GGML block layouts (see quant/blocks.h).
#include "base/dtype.h"

#include "base/error.h"

namespace lb {
namespace {

constexpr uint32_t kNoGgmlId = ~0u;  // of types that no file has

constexpr DTypeInfo kTable[kDTypeCount] = {
    {"F32", 0, 1, 4},         {"F16", 1, 1, 2},
    {"BF16", 30, 1, 2},       {"Q4_0", 2, 32, 18},
    {"Q4_1", 3, 32, 20},      {"Q5_0", 6, 32, 22},
    {"Q5_1", 7, 32, 24},      {"Q8_0", 8, 32, 34},
    {"Q2_K", 10, 256, 84},    {"Q3_K", 11, 256, 110},
    {"Q4_K", 12, 256, 144},   {"Q5_K", 13, 256, 176},
    {"Q6_K", 14, 256, 210},   {"IQ4_NL", 20, 32, 18},
    {"IQ4_XS", 23, 256, 136}, {"MXFP4", 39, 32, 17},
    {"NVFP4", 40, 64, 36},    {"F8_E4M3", kNoGgmlId, 128, 132},
    {"IQ1_S", 19, 256, 50},   {"IQ1_M", 29, 256, 56},
    {"IQ2_XXS", 16, 256, 66}, {"IQ2_XS", 17, 256, 74},
    {"IQ2_S", 22, 256, 82},   {"IQ3_XXS", 18, 256, 98},
    {"IQ3_S", 21, 256, 110},  {"TQ1_0", 34, 256, 54},
    {"TQ2_0", 35, 256, 66},   {"NVFP4_SCALED", kNoGgmlId, 64, 36, 8},
};

// Types that files may contain but the engine cannot compute with. Unused tensors may have them; messages name them.
constexpr DTypeInfo kForeignTypes[] = {
    {"Q8_1", 9, 32, 36}, {"Q8_K", 15, 256, 292}, {"I8", 24, 1, 1},  {"I16", 25, 1, 2},
    {"I32", 26, 1, 4},   {"I64", 27, 1, 8},      {"F64", 28, 1, 8},
};

}  // namespace

const DTypeInfo& info(DType type) {
  LB_ASSERT(static_cast<int>(type) < kDTypeCount);
  return kTable[static_cast<int>(type)];
}

std::optional<DType> dtype_from_ggml(uint32_t ggml_id) {
  if (ggml_id == kNoGgmlId) return std::nullopt;
  for (int i = 0; i < kDTypeCount; ++i)
    if (kTable[i].ggml_id == ggml_id) return static_cast<DType>(i);
  return std::nullopt;
}

std::optional<DType> dtype_from_name(std::string_view name) {
  for (int i = 0; i < kDTypeCount; ++i)
    if (kTable[i].name == name) return static_cast<DType>(i);
  return std::nullopt;
}

const DTypeInfo* ggml_type_info(uint32_t ggml_id) {
  if (auto type = dtype_from_ggml(ggml_id)) return &info(*type);
  for (const DTypeInfo& type : kForeignTypes)
    if (type.ggml_id == ggml_id) return &type;
  return nullptr;
}

}  // namespace lb
