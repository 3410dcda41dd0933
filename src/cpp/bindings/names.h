// Parses enumerations that Python passes by name.
#pragma once

#include <string>

#include "base/dtype.h"
#include "base/error.h"
#include "bindings/option_rows.h"
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

inline Activations activations_named(const std::string& text) { return value_of<Activations>("activations", text); }

inline Isa isa_named(const std::string& text) { return value_of<Isa>("isa", text); }

}  // namespace lb
