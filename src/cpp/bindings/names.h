// Parses enumerations that Python passes by name.
#pragma once

#include <string>

#include "base/dtype.h"
#include "base/error.h"
#include "cpu/kernels.h"
#include "ops/linear.h"
#include "quant/kv_names.h"

namespace lb {

inline DType dtype_named(const std::string& text) {
  const auto type = dtype_from_name(text);
  LB_CHECK(type, kInvalid, "unknown element type \"", text, "\"");
  return *type;
}

inline KvType kv_type_named(const std::string& text) {
  const auto type = kv_type_from_name(text);
  LB_CHECK(type, kInvalid, "unknown KV type \"", text, "\"; there are: ", kv_names());
  return *type;
}

inline Activations activations_named(const std::string& text) {
  LB_CHECK(text == "int8" || text == "f32", kInvalid, "activations are \"int8\" or \"f32\", got \"", text, "\"");
  return text == "int8" ? Activations::kInt8 : Activations::kF32;
}

inline Isa isa_named(const std::string& text) {
  if (text == "auto") return best_isa();
  for (Isa isa : {Isa::kScalar, Isa::kPortable, Isa::kAvx2, Isa::kAvx512})
    if (name(isa) == text) return isa;
  fail(ErrorCode::kInvalid, "isa must be auto, scalar, portable, avx2 or avx512, got ", text);
}

}  // namespace lb
