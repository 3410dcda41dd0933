// Binds tensors strictly: every tensor must be expected, and every expected tensor present.
#include "weights/binder.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "quant/rows.h"

namespace lb {

namespace {

constexpr const char* kUseOtherWeights = "Use a checkpoint in BF16, FP8 or NVFP4, or a GGUF file";
constexpr std::string_view kFp8 = "F8_E4M3", kE8M0 = "F8_E8M0", kBytes = "U8", kWeight = "weight",
                           kPacked = "weight_packed";

// Name prefix of the text model: in a causal language model, in a multimodal wrapper (of newer and older transformers),
// or alone, as in embedding models.
std::string text_model_prefix(const TensorTable& tensors) {
  for (const char* prefix : {"model.", "model.language_model.", "language_model.model.", ""})
    for (const std::string_view suffix : {kWeight, kPacked})
      if (tensors.find(cat(prefix, "embed_tokens.", suffix)) != nullptr) return prefix;
  return "model.";
}

// Rows and columns of an FP8 block that shares one scale.
std::pair<int, int> fp8_block(const ModelFile& file) {
  std::pair<int, int> block{128, 128};
  if (file.safetensors() == nullptr) return block;
  const Json& config = file.safetensors()->config;
  const Json* text = config.find("text_config");
  for (const Json* at : {&config, text}) {
    const Json* quantised = at != nullptr && at->is_object() ? at->find("quantization_config") : nullptr;
    const Json* size = quantised != nullptr && quantised->is_object() ? quantised->find("weight_block_size") : nullptr;
    if (size == nullptr || size->is_null()) continue;
    LB_CHECK(size->array().size() == 2, kFormat, size->where(), ": weight_block_size must list rows and columns");
    const int64_t rows = size->array()[0].integer(), columns = size->array()[1].integer();
    LB_CHECK(std::min(rows, columns) >= 1 && std::max(rows, columns) <= 1 << 20, kFormat, size->where(),
             ": weight_block_size is ", rows, " x ", columns);
    block = {static_cast<int>(rows), static_cast<int>(columns)};
  }
  return block;
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
  return (name.is_beside_model || name.hf.starts_with("lm_head.") ? head_prefix_ : prefix_) + name.hf;
}

const TensorView* Binder::find(const TensorName& name) const {
  const std::string in_file = file_name(name);
  const TensorView* tensor = tensors_.find(in_file);
  if (tensor != nullptr || is_gguf_ || !in_file.ends_with(kWeight)) return tensor;
  return tensors_.find(cat(in_file.substr(0, in_file.size() - kWeight.size()), kPacked));
}

const TensorView& Binder::find_matrix(const TensorName& name) const {
  const TensorView* tensor = find(name);
  LB_CHECK(tensor != nullptr, kFormat, file_.path, ": tensor ", file_name(name), " is missing");
  LB_CHECK(tensor->shape.size() == 2 && std::min(tensor->shape[0], tensor->shape[1]) >= 1 &&
               std::max(tensor->shape[0], tensor->shape[1]) <= INT32_MAX,
           kFormat, to_string(*tensor), " has shape ", shape_text(tensor->shape), "; expected a matrix");
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

std::vector<int64_t> Binder::shape(const TensorName& name) const {
  const TensorView* tensor = find(name);
  LB_CHECK(tensor != nullptr, kFormat, file_.path, ": tensor ", file_name(name), " is missing");
  return tensor->shape;
}
int Binder::height(const TensorName& name) const { return static_cast<int>(find_matrix(name).shape[0]); }
int Binder::width(const TensorName& name) const {
  const TensorView& tensor = find_matrix(name);
  return static_cast<int>(tensor.shape[1]) * (is_packed(tensor) ? 2 : 1);
}

const TensorView& Binder::take(const TensorName& name, const std::vector<int64_t>& shape) {
  return check_type(take_any_type(name, shape));
}

const TensorView& Binder::take_any_type(const TensorName& name, const std::vector<int64_t>& shape) {
  const TensorView* tensor = find(name);
  const std::string in_file = file_name(name);
  if (in_file.ends_with(".weight")) {
    const std::string module = in_file.substr(0, in_file.size() - kWeight.size());
    for (const auto& [suffix, tool] : {std::pair("qweight", "GPTQ or AWQ"), std::pair("weight.absmax", "bitsandbytes"),
                                       std::pair("SCB", "bitsandbytes"), std::pair("scales", "MLX in a few bits")})
      LB_CHECK(is_gguf_ || tensors_.find(module + suffix) == nullptr, kUnsupported, file_.path, ": tensor ",
               module + suffix, " has weights of ", tool, ", which are not supported. ", kUseOtherWeights);
  }
  LB_CHECK(tensor != nullptr, kFormat, file_.path, ": tensor ", in_file, " is missing; expected it with shape ",
           shape_text(shape));
  LB_CHECK(tensor->shape == shape, kFormat, to_string(*tensor), " has shape ", shape_text(tensor->shape), "; expected ",
           shape_text(shape));
  used_[tensor - tensors_.all().data()] = true;
  return *tensor;
}

Matrix Binder::matrix(const TensorName& name, int n_out, int n_in, Split split) {
  Source from = source(name, n_out, n_in);
  Matrix matrix = from.mapped == nullptr
                      ? written(n_out, n_in, std::move(from.rows))
                      : Matrix{from.mapped->data, from.mapped->type, n_out, n_in, WeightLayout::kBlocks};
  matrix.name = find(name)->name;
  matrix.split = std::move(split);
  return matrix;
}

Matrix Binder::rows_of(const TensorName& name, int n_all, int first, int n_out, int n_in, Split split) {
  const Source from = source(name, n_all, n_in);
  LB_CHECK(from.mapped != nullptr, kUnsupported, to_string(*find(name)),
           " joins several matrices in FP8 or NVFP4, which is not supported. ", kUseOtherWeights);
  const DType type = from.mapped->type;
  Matrix matrix{from.mapped->data + first * row_bytes(type, n_in), type, n_out, n_in, WeightLayout::kBlocks};
  matrix.name = from.mapped->name;
  matrix.split = std::move(split);
  return matrix;
}

Matrix Binder::router(const TensorName& name, int n_experts, int n_in) {
  const TensorView* tensor = find(name);
  const bool is_half = tensor != nullptr && tensor->foreign_type.empty() &&
                       (tensor->type == DType::kF16 || tensor->type == DType::kBF16);
  if (!is_half) return matrix(name, n_experts, n_in, Split::none());
  Matrix router{array(name, {n_experts, n_in}), DType::kF32, n_experts, n_in, WeightLayout::kBlocks};
  router.name = tensor->name;
  router.split = Split::none();
  copies_.vector_bytes -= router.bytes();  // it is counted as a matrix
  copies_.matrix_bytes += router.bytes();
  return router;
}

Binder::Source Binder::source(const TensorName& name, int n_out, int n_in) {
  if (const TensorView* tensor = find(name); tensor != nullptr && is_packed(*tensor))
    return {nullptr, row_source(packed(name, n_out, n_in), tensor->name)};
  const TensorView& tensor = take_any_type(name, {n_out, n_in});
  if (tensor.foreign_type == kFp8) return {nullptr, row_source(fp8(tensor, n_out, n_in), tensor.name)};
  check_type(tensor);
  if (const TensorView* scale = nvfp4_scale(tensor))
    return {nullptr, row_source(ScaledBlocks{tensor.data, n_in, {number(*scale)}, n_out})};
  return {&tensor, {}};
}

Matrix Binder::experts(const TensorName& name, int n_experts, int n_out, int n_in,
                       const std::function<TensorName(int)>& of_expert) {
  const int all_rows = n_experts * n_out;
  Matrix matrix;
  if (of_expert == nullptr || has(name)) {
    const TensorView& tensor = take(name, {n_experts, n_out, n_in});
    if (const TensorView* scale = nvfp4_scale(tensor)) {
      const std::vector<float> scales = numbers(*scale);
      LB_CHECK(std::ssize(scales) == n_experts, kFormat, to_string(*scale), " has shape ", shape_text(scale->shape),
               "; expected one scale for each of ", n_experts, " experts");
      matrix = written(all_rows, n_in, row_source(ScaledBlocks{tensor.data, n_in, scales, n_out}));
    } else {
      matrix = {tensor.data, tensor.type, all_rows, n_in, WeightLayout::kBlocks};
    }
    matrix.name = tensor.name;
  } else {
    std::vector<Source> parts;
    for (int e = 0; e < n_experts; ++e) parts.push_back(source(of_expert(e), n_out, n_in));
    matrix = joined(file_name(of_expert(0)), parts, n_out, n_in);
    matrix.name = file_name(name);
  }
  matrix.split = Split::experts(n_experts, n_out);
  matrix.n_experts = n_experts;
  return matrix;
}

// The experts' matrices, which are anywhere in the file, as one matrix in host memory.
Matrix Binder::joined(const std::string& name, const std::vector<Source>& parts, int n_out, int n_in) {
  const int n = static_cast<int>(parts.size());
  const auto type_of = [](const Source& part) { return part.mapped == nullptr ? part.rows.type : part.mapped->type; };
  for (const Source& part : parts)
    LB_CHECK(type_of(part) == type_of(parts[0]) && (part.mapped == nullptr) == (parts[0].mapped == nullptr),
             kUnsupported, file_.path, ": tensor ", name, ": experts of one layer have different types. ",
             kUseOtherWeights);
  if (parts[0].mapped == nullptr)
    return written(n * n_out, n_in, {parts[0].rows.type, [parts, n_out](int row, std::byte* to) {
                                       parts[row / n_out].rows.write(row % n_out, to);
                                     }});
  const TensorView& first = *parts[0].mapped;
  HostCopies::Joined copy{.bytes = first.bytes};
  for (const Source& part : parts) copy.from.push_back(part.mapped->data);
  return {copies_.join(std::move(copy)), first.type, n * n_out, n_in, WeightLayout::kBlocks};
}

namespace {

// The row of an expert in the file that becomes row `row`.
int row_in_file(int row, int n_out, ExpertRowOrder order) {
  if (order == ExpertRowOrder::kPlain) return row;
  const int half = n_out / 2;
  return row < half ? 2 * row : 2 * (row - half) + 1;
}

// Codes of 32 values in order of the values become codes of values i (low) and i + 16 (high).
void repack_mxfp4(const uint8_t* codes, uint8_t scale, uint8_t* block) {
  block[0] = scale;
  const auto code = [&](int i) { return codes[i / 2] >> (i % 2 * 4) & 15; };
  for (int i = 0; i < 16; ++i) block[1 + i] = static_cast<uint8_t>(code(i) | code(i + 16) << 4);
}

}  // namespace

Matrix Binder::expert_blocks(const TensorName& name, int n_experts, int n_out, int n_in, ExpertRowOrder order) {
  const TensorName blocks_name{"", name.hf + "_blocks"}, scales{"", name.hf + "_scales"};
  Matrix matrix;
  if (has(blocks_name)) {
    LB_CHECK(n_in % 32 == 0, kFormat, file_.path, ": ", file_name(blocks_name), ": rows of ", n_in,
             " values are not whole blocks of 32");
    const TensorView& blocks = take_any_type(blocks_name, {n_experts, n_out, n_in / 32, 16});
    matrix = mxfp4_blocks(blocks, scales, n_experts, n_out, n_in, order);
  } else {
    const TensorView& tensor = take(name, {n_experts, n_in, n_out});
    LB_CHECK(tensor.type == DType::kBF16, kUnsupported, to_string(tensor), " is ", lb::name(tensor.type),
             "; experts in this layout must be BF16, or MXFP4 in ", file_name(blocks_name));
    const auto* values = reinterpret_cast<const uint16_t*>(tensor.data);
    const auto write = [=](int row, std::byte* bytes) {
      const size_t first = size_t(row / n_out) * n_in * n_out + row_in_file(row % n_out, n_out, order);
      auto* to = reinterpret_cast<uint16_t*>(bytes);
      for (int i = 0; i < n_in; ++i) to[i] = values[first + size_t(i) * n_out];
    };
    matrix = written(n_experts * n_out, n_in, {DType::kBF16, write});
  }
  matrix.name = file_name(name);
  matrix.split = Split::experts(n_experts, n_out);
  matrix.n_experts = n_experts;
  return matrix;
}

Matrix Binder::mxfp4_blocks(const TensorView& blocks, const TensorName& scales_name, int n_experts, int n_out, int n_in,
                            ExpertRowOrder order) {
  const TensorView& scales = take_any_type(scales_name, {n_experts, n_out, n_in / 32});
  for (const TensorView* tensor : {&blocks, &scales})
    LB_CHECK(type_name(*tensor) == kBytes, kFormat, to_string(*tensor), " is ", type_name(*tensor), "; expected ",
             kBytes);
  const auto* codes = reinterpret_cast<const uint8_t*>(blocks.data);
  const auto* exponents = reinterpret_cast<const uint8_t*>(scales.data);
  const int n_blocks = n_in / 32;
  const auto write = [=](int row, std::byte* to) {
    const size_t from = (size_t(row / n_out) * n_out + row_in_file(row % n_out, n_out, order)) * n_blocks;
    for (int i = 0; i < n_blocks; ++i)
      repack_mxfp4(codes + (from + i) * 16, exponents[from + i], reinterpret_cast<uint8_t*>(to) + size_t(i) * 17);
  };
  return written(n_experts * n_out, n_in, {DType::kMXFP4, write});
}

const float* Binder::columns(const TensorName& name, int rows, int n_all, int n, int first, int step) {
  const TensorView& tensor = take(name, {rows, n_all});
  const std::vector<float> all = numbers(tensor);
  auto values = std::make_unique<float[]>(size_t(rows) * n);
  for (int r = 0; r < rows; ++r)
    for (int i = 0; i < n; ++i) values[size_t(r) * n + i] = all[size_t(r) * n_all + first + size_t(i) * step];
  copies_.vectors.push_back(std::move(values));
  copies_.vector_bytes += size_t(rows) * n * sizeof(float);
  return copies_.vectors.back().get();
}

Matrix Binder::row(const TensorName& name, int n) {
  const TensorView* tensor = find(name);
  if (tensor == nullptr || tensor->shape.size() != 1) return matrix(name, 1, n, Split::none());
  Matrix matrix{vector(name, n), DType::kF32, 1, n, WeightLayout::kBlocks};
  matrix.name = tensor->name;
  return matrix;
}

bool Binder::is_packed(const TensorView& tensor) const {
  return tensor.name.ends_with(kPacked) || (tensor.foreign_type == kBytes && beside(tensor, "weight_scale_2"));
}

// The tensor whose name has `suffix` instead of "weight"; null if there is none.
const TensorView* Binder::beside(const TensorView& tensor, std::string_view suffix) const {
  for (const std::string_view end : {kWeight, kPacked})
    if (tensor.name.ends_with(end))
      return tensors_.find(cat(tensor.name.substr(0, tensor.name.size() - end.size()), suffix));
  return nullptr;
}

// The same, and marks the tensor as used.
const TensorView* Binder::take_beside(const TensorView& tensor, std::string_view suffix) {
  const TensorView* found = beside(tensor, suffix);
  if (found != nullptr) used_[found - tensors_.all().data()] = true;
  return found;
}

std::vector<float> Binder::numbers(const TensorView& tensor) const {
  check_type(tensor);
  LB_CHECK(info(tensor.type).block_values == 1, kFormat, to_string(tensor), " is ", name(tensor.type),
           "; scales must be F32, F16 or BF16");
  std::vector<float> values(tensor.bytes / info(tensor.type).block_bytes);
  quant::dequantize_row(tensor.type, tensor.data, values.data(), static_cast<long>(values.size()));
  for (size_t i = 0; i < values.size(); ++i)
    LB_CHECK(std::isfinite(values[i]), kFormat, to_string(tensor), ": value ", i, " is not finite");
  return values;
}

float Binder::number(const TensorView& tensor) const {
  const std::vector<float> values = numbers(tensor);
  LB_CHECK(values.size() == 1, kFormat, to_string(tensor), " has shape ", shape_text(tensor.shape),
           "; expected one scale of the whole tensor");
  return values[0];
}

Fp8Matrix Binder::fp8(const TensorView& tensor, int n_out, int n_in) {
  for (const char* of_activations : {"input_scale", "activation_scale"})
    take_beside(tensor, of_activations);  // activations stay in fp32 here
  const TensorView* scale = take_beside(tensor, "weight_scale_inv");
  if (scale == nullptr) scale = take_beside(tensor, "weight_scale");
  Fp8Matrix m{.codes = reinterpret_cast<const uint8_t*>(tensor.data),
              .scales = {1},
              .n_in = n_in,
              .block_rows = n_out,
              .block_columns = n_in};
  if (scale == nullptr) return m;
  const int64_t rows = scale->shape.empty() ? 1 : scale->shape[0];
  const int64_t columns = scale->shape.size() < 2 ? 1 : scale->shape[1];
  LB_CHECK(type_name(*scale) != kBytes && type_name(*scale) != kE8M0, kUnsupported, to_string(tensor),
           " has weights of MXFP8, which are not supported. ", kUseOtherWeights);
  const auto [block_rows, block_columns] = fp8_block(file_);
  const bool is_one = rows == 1 && columns == 1, is_by_row = rows == n_out && columns == 1;
  m.block_rows = is_one ? n_out : is_by_row ? 1 : block_rows;
  m.block_columns = is_one || is_by_row ? n_in : block_columns;
  LB_CHECK(scale->shape.size() <= 2 && rows == (n_out + m.block_rows - 1) / m.block_rows &&
               columns == (n_in + m.block_columns - 1) / m.block_columns,
           kFormat, to_string(*scale), " has shape ", shape_text(scale->shape), "; expected scales of a [", n_out, ", ",
           n_in, "] matrix: one, one per row, or one per block of [", block_rows, ", ", block_columns, "]");
  m.scales = numbers(*scale);
  return m;
}

// The scale beside NVFP4 of a GGUF file, as llama.cpp's converter writes it; null if there is none.
const TensorView* Binder::nvfp4_scale(const TensorView& tensor) {
  if (tensor.type != DType::kNVFP4 || !tensor.foreign_type.empty()) return nullptr;
  take_beside(tensor, "input_scale");
  const TensorView* scale = take_beside(tensor, "scale");
  return scale != nullptr ? scale : take_beside(tensor, "weight.scale");
}

// NVFP4 as NVIDIA's tools write it (weight, weight_scale_2) and as compressed-tensors does (weight_packed,
// weight_global_scale, which divides).
Nvfp4Matrix Binder::packed(const TensorName& name, int n_out, int n_in) {
  constexpr int kBlock = Nvfp4Matrix::kBlock;
  LB_CHECK(find(name)->foreign_type == kBytes, kUnsupported, to_string(*find(name)), " has type ",
           type_name(*find(name)), "; packed weights must be NVFP4 (U8). ", kUseOtherWeights);
  const TensorView& tensor = take_any_type(name, {n_out, (n_in + 1) / 2});
  const bool is_divisor = tensor.name.ends_with(kPacked);
  const char* by_tensor = is_divisor ? "weight_global_scale" : "weight_scale_2";
  for (const char* of_activations : {"input_scale", "input_global_scale"}) take_beside(tensor, of_activations);
  const TensorView *scales = take_beside(tensor, "weight_scale"), *scale = take_beside(tensor, by_tensor);
  LB_CHECK(scales == nullptr || scale != nullptr || (type_name(*scales) != kBytes && type_name(*scales) != kE8M0),
           kUnsupported, to_string(tensor), " has weights of MXFP4 of compressed-tensors, which are not supported. ",
           kUseOtherWeights);
  LB_CHECK(scales != nullptr && scale != nullptr, kFormat, to_string(tensor), ": NVFP4 needs weight_scale and ",
           by_tensor, " beside it");
  LB_CHECK(scales->foreign_type == kFp8 && n_in % kBlock == 0 && scales->shape.size() == 2 &&
               scales->shape[0] == n_out && scales->shape[1] == n_in / kBlock,
           kFormat, to_string(*scales), " is ", type_name(*scales), " ", shape_text(scales->shape), "; expected ", kFp8,
           " [", n_out, ", ", n_in / kBlock, "]: one per ", kBlock, " values of a row");
  const float factor = number(*scale);
  LB_CHECK(factor != 0, kFormat, to_string(*scale), " is 0");
  const auto bytes = [](const TensorView* t) { return reinterpret_cast<const uint8_t*>(t->data); };
  return {bytes(&tensor), bytes(scales), n_in, factor, is_divisor};
}

Matrix Binder::written(int n_out, int n_in, RowSource rows) {
  const DType type = rows.type;
  return {copies_.write(std::move(rows), n_out, n_in), type, n_out, n_in, WeightLayout::kBlocks};
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
  copies_.vectors.push_back(std::move(values));
  copies_.vector_bytes += count * sizeof(float);
  return copies_.vectors.back().get();
}

const float* Binder::vector(const TensorName& name, int n, HfFix fix) { return copy(take(name, {n}), n, fix); }

const float* Binder::scaled(const TensorName& name, int n, float factor) {
  const float* values = vector(name, n);
  float* const own = copies_.vectors.back().get();
  LB_ASSERT(own == values);
  std::ranges::transform(own, own + n, own, [&](float value) { return value * factor; });
  return values;
}

float* Binder::copy_of(const float* vector) {
  const auto found = std::ranges::find(copies_.vectors, vector, &std::unique_ptr<float[]>::get);
  LB_ASSERT(found != copies_.vectors.end());
  return found->get();
}

const float* Binder::ones(int n) {
  auto values = std::make_unique<float[]>(n);
  std::fill_n(values.get(), n, 1.0f);
  copies_.vectors.push_back(std::move(values));
  copies_.vector_bytes += n * sizeof(float);
  return copies_.vectors.back().get();
}

const float* Binder::array(const TensorName& name, const std::vector<int64_t>& shape) {
  const TensorView& tensor = take(name, shape);
  size_t count = 1;
  for (int64_t n : shape) count *= static_cast<size_t>(n);
  return copy(tensor, count, HfFix::kNone);
}

const float* Binder::filter(const TensorName& name, int channels, int taps) {
  const std::vector<int64_t> of_mlx{channels, taps, 1};
  LB_CHECK(is_gguf_ || find(name) == nullptr || find(name)->shape != of_mlx || taps == 1, kUnsupported,
           to_string(*find(name)), " has shape ", shape_text(of_mlx),
           ", the layout of MLX, which also changes the norms; use the original checkpoint or a GGUF file");
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
