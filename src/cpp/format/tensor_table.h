// The tensors of a model as stored in its file: names, types, shapes and pointers into the mapping.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"

namespace lb {

struct TensorView {
  std::string name;
  DType type;
  std::vector<int64_t> shape;  // row-major, outermost first; empty for a scalar
  const std::byte* data;       // aligned for its type
  size_t bytes;
  std::string file;
  uint64_t offset;           // of data in file
  std::string foreign_type;  // name of a type that the engine cannot compute with, such as I64; `type` is void then
};

// Name of the tensor's type, whether or not the engine can compute with it.
std::string_view type_name(const TensorView& tensor);

class TensorTable {
 public:
  TensorTable() = default;
  // `owners` are the mappings the views point into. Throws kFormat when two tensors share a name.
  TensorTable(std::vector<TensorView> tensors, std::vector<std::shared_ptr<const void>> owners);

  const TensorView* find(std::string_view name) const;             // nullptr when absent
  const std::vector<TensorView>& all() const { return tensors_; }  // in file order
  size_t total_bytes() const { return total_bytes_; }
  const std::vector<std::shared_ptr<const void>>& owners() const { return owners_; }

 private:
  std::vector<TensorView> tensors_;
  std::vector<uint32_t> by_name_;  // indices of tensors_, sorted by name
  std::vector<std::shared_ptr<const void>> owners_;
  size_t total_bytes_ = 0;
};

// Names a tensor in error messages: `tensor "blk.3.attn_norm.weight" in model.gguf at byte 4096`.
std::string to_string(const TensorView& tensor);
std::string shape_text(const std::vector<int64_t>& shape);  // "[1024, 3584]"

}  // namespace lb
