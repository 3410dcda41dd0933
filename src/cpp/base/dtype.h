// Properties of each element type on the host: name, GGUF id, block size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "base/dtype_id.h"

namespace lb {

struct DTypeInfo {
  std::string_view name;  // as GGUF tools print it
  uint32_t ggml_id;       // type field of a GGUF tensor
  uint32_t block_values;  // values per block; 1 for plain numbers
  uint32_t block_bytes;
  uint32_t header_bytes = 0;  // before the blocks of each row
};

const DTypeInfo& info(DType type);
inline std::string_view name(DType type) { return info(type).name; }

// Bytes of a row of `count` values; count must be a multiple of block_values.
inline size_t row_bytes(DType type, size_t count) {
  const DTypeInfo& of = info(type);
  return of.header_bytes + count / of.block_values * of.block_bytes;
}

std::optional<DType> dtype_from_ggml(uint32_t ggml_id);
std::optional<DType> dtype_from_name(std::string_view name);
// Layout of a GGML type id, including types that the engine cannot compute with; nullptr when unknown.
const DTypeInfo* ggml_type_info(uint32_t ggml_id);

}  // namespace lb
