// Strict binding of tensors.
#include "weights/binder.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "quant/rows.h"

namespace lb {

namespace {

// Where the text model lies: in a causal language model, in a multimodal wrapper (of newer and older transformers), or
// alone, as in embedding models.
std::string text_model_prefix(const TensorTable& tensors) {
  for (const char* prefix : {"model.", "model.language_model.", "language_model.model.", ""})
    if (tensors.find(cat(prefix, "embed_tokens.weight")) != nullptr) return prefix;
  return "model.";
}

}  // namespace

Binder::Binder(const ModelFile& file) : Binder(file, text_model_prefix(file.tensors())) {}

Binder::Binder(const ModelFile& file, std::string hf_prefix)
    : file_(file),
      tensors_(file.tensors()),
      is_gguf_(file.gguf() != nullptr),
      prefix_(std::move(hf_prefix)),
      head_prefix_(prefix_ == "language_model.model." ? "language_model." : ""),
      used_(tensors_.all().size()) {}

std::string Binder::file_name(const TensorName& name) const {
  if (is_gguf_) return name.gguf;
  return (name.hf.starts_with("lm_head.") ? head_prefix_ : prefix_) + name.hf;
}

const TensorView* Binder::find(const TensorName& name) const { return tensors_.find(file_name(name)); }

const TensorView& Binder::find_matrix(const TensorName& name) const {
  const TensorView* tensor = find(name);
  LB_CHECK(tensor != nullptr, kFormat, file_.path, ": tensor ", file_name(name), " is missing");
  LB_CHECK(tensor->shape.size() == 2 && std::max(tensor->shape[0], tensor->shape[1]) <= INT32_MAX, kFormat,
           to_string(*tensor), " has shape ", shape_text(tensor->shape), "; expected a matrix");
  return *tensor;
}

const TensorView& Binder::check_type(const TensorView& tensor) const {
  LB_CHECK(tensor.foreign_type.empty(), kUnsupported, to_string(tensor), " has type ", tensor.foreign_type,
           ", which is not supported; convert the model again, for example to BF16, Q8_0 or Q4_K_M");
  return tensor;
}

bool Binder::are_equal(const TensorName& a, const TensorName& b) const {
  const TensorView &x = *find(a), &y = *find(b);
  return x.type == y.type && x.shape == y.shape && x.foreign_type == y.foreign_type && x.bytes == y.bytes &&
         std::memcmp(x.data, y.data, x.bytes) == 0;
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
  return check_type(*tensor);
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
