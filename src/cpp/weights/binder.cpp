// Strict binding of tensors.
#include "weights/binder.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "quant/dequantize.h"

namespace lb {

// Vision-language wrappers hold the text model one level deeper.
Binder::Binder(const ModelFile& file)
    : Binder(file, file.tensors().find("model.language_model.embed_tokens.weight") != nullptr ? "model.language_model."
                                                                                              : "model.") {}

Binder::Binder(const ModelFile& file, std::string hf_prefix)
    : file_(file),
      tensors_(file.tensors()),
      is_gguf_(file.gguf() != nullptr),
      prefix_(std::move(hf_prefix)),
      used_(tensors_.all().size()) {}

std::string Binder::file_name(const TensorName& name) const {
  if (is_gguf_) return name.gguf;
  return name.hf.starts_with("lm_head.") ? name.hf : prefix_ + name.hf;
}

const TensorView* Binder::find(const TensorName& name) const { return tensors_.find(file_name(name)); }

const TensorView& Binder::find_matrix(const TensorName& name) const {
  const TensorView* tensor = find(name);
  LB_CHECK(tensor != nullptr, kFormat, file_.path, ": tensor ", file_name(name), " is missing");
  LB_CHECK(tensor->shape.size() == 2 && std::max(tensor->shape[0], tensor->shape[1]) <= INT32_MAX, kFormat,
           to_string(*tensor), " has shape ", shape_text(tensor->shape), "; expected a matrix");
  return *tensor;
}

int Binder::height(const TensorName& name) const { return static_cast<int>(find_matrix(name).shape[0]); }
int Binder::width(const TensorName& name) const { return static_cast<int>(find_matrix(name).shape[1]); }

const TensorView& Binder::take(const TensorName& name, const std::vector<int64_t>& shape) {
  const TensorView* tensor = find(name);
  LB_CHECK(tensor != nullptr, kFormat, file_.path, ": tensor ", file_name(name), " is missing; expected it with shape ",
           shape_text(shape));
  LB_CHECK(tensor->shape == shape, kFormat, to_string(*tensor), " has shape ", shape_text(tensor->shape), "; expected ",
           shape_text(shape));
  used_[tensor - tensors_.all().data()] = true;
  return *tensor;
}

Matrix Binder::matrix(const TensorName& name, int n_out, int n_in) {
  const TensorView& tensor = take(name, {n_out, n_in});
  return {tensor.data, tensor.type, n_out, n_in, WeightLayout::kBlocks};
}

const float* Binder::copy(const TensorView& tensor, size_t count, HfFix fix) {
  const DTypeInfo& type = info(tensor.type);
  LB_CHECK(type.block_values == 1, kFormat, to_string(tensor), " is ", type.name,
           "; a vector must be F32, F16 or BF16");
  auto values = std::make_unique<float[]>(count);
  quant::dequantize_row(tensor.type, tensor.data, values.get(), static_cast<long>(count));
  for (size_t i = 0; i < count; ++i) {
    float& value = values[i];
    LB_CHECK(std::isfinite(value), kFormat, to_string(tensor), ": value ", i, " is not finite");
    if (!is_gguf_ && fix == HfFix::kAddOne) value = 1 + value;
    if (!is_gguf_ && fix == HfFix::kNegExp) value = -std::exp(value);
  }
  vectors_.push_back(std::move(values));
  vector_bytes_ += count * sizeof(float);
  return vectors_.back().get();
}

const float* Binder::vector(const TensorName& name, int n, HfFix fix) { return copy(take(name, {n}), n, fix); }

const float* Binder::array(const TensorName& name, const std::vector<int64_t>& shape) {
  const TensorView& tensor = take(name, shape);
  size_t count = 1;
  for (int64_t n : shape) count *= static_cast<size_t>(n);
  return copy(tensor, count, HfFix::kNone);
}

const float* Binder::filter(const TensorName& name, int channels, int taps) {
  const TensorView& tensor = is_gguf_ ? take(name, {channels, taps}) : take(name, {channels, 1, taps});
  return copy(tensor, static_cast<size_t>(channels) * taps, HfFix::kNone);
}

void Binder::skip(const std::function<bool(std::string_view)>& known) {
  for (size_t i = 0; i < used_.size(); ++i)
    if (known(tensors_.all()[i].name)) used_[i] = true;
}

void Binder::finish() const {
  int left = 0;
  const TensorView* first = nullptr;
  for (size_t i = 0; i < used_.size(); ++i) {
    if (used_[i]) continue;
    ++left;
    if (first == nullptr) first = &tensors_.all()[i];
  }
  LB_CHECK(left == 0, kFormat, to_string(*first), " with shape ", shape_text(first->shape),
           " is not part of this architecture", left > 1 ? cat(" (and ", left - 1, " more tensors)") : "",
           "; the file and its configuration do not belong together");
}

}  // namespace lb
