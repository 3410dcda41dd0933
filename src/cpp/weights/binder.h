// Binds a family's weights to a file's tensors, strictly both ways. A tensor the family names must exist with the right
// shape. A tensor in the file must be named, or declared as skipped. Matrices stay in the file's mapping. The few
// vectors are copied as fp32.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "format/model_file.h"
#include "ops/linear.h"
#include "weights/host_copies.h"
#include "weights/split.h"

namespace lb {

// A tensor's name in both formats. hf is relative to the text model ("layers.0.mlp.up_proj.weight"), and lm_head.* to
// the module that holds text model and head, as are names with is_beside_model.
struct TensorName {
  std::string gguf, hf;
  bool is_beside_model = false;
};

// The rows and columns of the file's matrix that a rank has (models/slice.cpp), ascending.
struct MatrixPieces {
  int n_in;  // of the file's matrix
  std::vector<SplitRange> rows, columns;
};

// A weight matrix: blocks in the mapped file when bound, planes once it is on a device (Network::carve_planes).
struct Matrix {
  const void* data = nullptr;  // [n_out, n_in], in `layout`
  DType type = DType::kF32;    // type by which ops read it
  int n_out = 0, n_in = 0;
  WeightLayout layout = WeightLayout::kBlocks;
  DType block_type = type;  // type of the blocks; Network::use_device_types() changes only `type`
  std::string name;         // in the file
  int slot = -1;            // in the shard's WeightStore; Network::finish() numbers them
  Split split;              // among the shards of an engine
  // Blocks only: `data` is the file's matrix, of which this one has some pieces; null: all of it.
  std::shared_ptr<const MatrixPieces> pieces;
  int n_experts = 0;     // the matrix has the rows of these experts, one after another; 0: no experts
  int expert_slots = 0;  // experts that `data` has on a device; 0: all
  // The planes of all experts in host memory that the device reads; null: `data` has all experts.
  const std::byte* host_experts = nullptr;
  size_t bytes() const { return n_out * row_bytes(type, n_in); }
  int rows_on_device() const { return expert_slots > 0 ? n_out / n_experts * expert_slots : n_out; }
};

// Order of an expert's rows in the file: as ops read them, or the rows of two matrices by turns, so that the even rows
// come first in memory.
enum class ExpertRowOrder { kPlain, kByTurns };

// Transform of a safetensors vector. The GGUF converter has already applied it to the GGUF counterpart.
enum class HfFix { kNone, kAddOne, kNegExp };

class Binder {
 public:
  explicit Binder(const ModelFile& file);
  // hf_prefix: prepended to every safetensors name.
  Binder(const ModelFile& file, std::string hf_prefix);

  bool is_gguf() const { return is_gguf_; }
  const std::string& path() const { return file_.path; }
  bool has(const TensorName& name) const { return find(name) != nullptr; }
  std::vector<int64_t> shape(const TensorName& name) const;  // throws if missing
  int height(const TensorName& name) const;                  // rows of a matrix; throws if missing
  // Whether two existing tensors have the same type, shape and bytes.
  bool are_equal(const TensorName& a, const TensorName& b) const;
  // FP8 matrices, and NVFP4 matrices with a scale of the tensor, are written to host memory when HostCopies::fill()
  // runs. split: how shards divide the matrix.
  Matrix matrix(const TensorName& name, int n_out, int n_in, Split split);
  // Rows [first, first + n_out) of a matrix of n_all rows, which joins several.
  Matrix rows_of(const TensorName& name, int n_all, int first, int n_out, int n_in, Split split);
  // A router: values of F16 and BF16 are copied as fp32, because products with 16-bit weights may round x.
  Matrix router(const TensorName& name, int n_experts, int n_in);
  // The matrices of all experts, one after another: [n_experts * n_out, n_in]. In the file one tensor [n_experts,
  // n_out, n_in], or, if it is missing, one matrix per expert: of_expert(e).
  Matrix experts(const TensorName& name, int n_experts, int n_out, int n_in,
                 const std::function<TensorName(int)>& of_expert);
  // The same from a safetensors file of MXFP4 blocks, name + "_blocks" [n_experts, n_out, n_in / 32, 16] and name +
  // "_scales" [n_experts, n_out, n_in / 32]; or, if they are missing, from BF16 [n_experts, n_in, n_out].
  Matrix expert_blocks(const TensorName& name, int n_experts, int n_out, int n_in, ExpertRowOrder order);
  // Columns first, first + step, ... of a matrix [rows, n_all]: [rows, n].
  const float* columns(const TensorName& name, int rows, int n_all, int n, int first, int step);
  // A vector as a matrix of one row: [n], or [1, n].
  Matrix row(const TensorName& name, int n);
  const float* vector(const TensorName& name, int n, HfFix fix = HfFix::kNone);
  const float* ones(int n);  // a vector that no file has
  const float* scaled(const TensorName& name, int n, float factor);
  float* copy_of(const float* vector);  // what vector() returned, to change it
  // Any number of axes, copied like a vector.
  const float* array(const TensorName& name, const std::vector<int64_t>& shape);
  // A depthwise filter: [channels, taps], or [channels, 1, taps] in safetensors.
  const float* filter(const TensorName& name, int channels, int taps);
  int width(const TensorName& name) const;  // columns of a matrix; throws if missing
  // Declares tensors that this engine does not use. The predicate takes the name in the file.
  void skip(const std::function<bool(std::string_view)>& known);
  // Throws if a tensor is neither bound nor skipped.
  void finish() const;

  // The memory of all copies; must outlive the pointers that matrix(), vector() and filter() returned.
  HostCopies take_copies() { return std::move(copies_); }

 private:
  std::string file_name(const TensorName& name) const;
  const TensorView& check_type(const TensorView& tensor) const;
  // A matrix as the file has it: values that ops read in the mapping, or rows to write.
  struct Source {
    const TensorView* mapped = nullptr;
    RowSource rows;
  };
  Source source(const TensorName& name, int n_out, int n_in);
  Matrix joined(const std::string& name, const std::vector<Source>& parts, int n_out, int n_in);
  const TensorView& take_any_type(const TensorName& name, const std::vector<int64_t>& shape);
  Matrix written(int n_out, int n_in, RowSource rows);
  Matrix mxfp4_blocks(const TensorView& blocks, const TensorName& scales, int n_experts, int n_out, int n_in,
                      ExpertRowOrder order);
  Fp8Matrix fp8(const TensorView& tensor, int n_out, int n_in);
  const TensorView* nvfp4_scale(const TensorView& tensor);
  Nvfp4Matrix packed(const TensorName& name, int n_out, int n_in);
  bool is_packed(const TensorView& tensor) const;
  const TensorView* beside(const TensorView& tensor, std::string_view suffix) const;
  const TensorView* take_beside(const TensorView& tensor, std::string_view suffix);
  std::vector<float> numbers(const TensorView& tensor) const;
  float number(const TensorView& tensor) const;  // the tensor's only value
  const TensorView& find_matrix(const TensorName& name) const;
  const TensorView* find(const TensorName& name) const;
  const TensorView& take(const TensorName& name, const std::vector<int64_t>& shape);
  const float* copy(const TensorView& tensor, size_t count, HfFix fix);

  const ModelFile& file_;
  const TensorTable& tensors_;
  bool is_gguf_;
  std::string prefix_;       // prefix of text-model tensors in safetensors
  std::string head_prefix_;  // of lm_head.* in safetensors
  std::vector<bool> used_;   // by position in the table
  HostCopies copies_;
};

}  // namespace lb
