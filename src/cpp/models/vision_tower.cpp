#include "models/vision_tower.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "base/error.h"
#include "models/blocks.h"

namespace lb {
namespace {

constexpr int kTileRows = 64;  // queries of an attention task
constexpr int kAlign = 32;     // rows of a product's operands are padded to this many values

int padded(int n) { return (n + kAlign - 1) / kAlign * kAlign; }

VisionWeights::Norm norm_of(Binder& binder, const TensorName& module, int width) {
  return {binder.vector({module.gguf + ".weight", module.hf + ".weight"}, width),
          binder.vector({module.gguf + ".bias", module.hf + ".bias"}, width)};
}

VisionProduct product_of(Binder& binder, const TensorName& module, int n_out, int n_in) {
  return {binder.matrix({module.gguf + ".weight", module.hf + ".weight"}, n_out, n_in, Split::none()),
          binder.vector({module.gguf + ".bias", module.hf + ".bias"}, n_out)};
}

// A matrix with the bounds of its x and y, if the file has them.
VisionProduct bounded_product(Binder& binder, const TensorName& module, int n_out, int n_in) {
  VisionProduct made{
      binder.matrix({module.gguf + ".weight", module.hf + ".linear.weight"}, n_out, n_in, Split::none())};
  const auto bounds = [&](const char* lowest, const char* highest) -> std::optional<VisionProduct::Bounds> {
    const auto name = [&](const char* bound) { return TensorName{module.gguf + bound, module.hf + bound}; };
    if (!binder.has(name(lowest))) return std::nullopt;
    const std::vector<int64_t> shape = binder.is_gguf() ? std::vector<int64_t>{1} : std::vector<int64_t>{};
    return VisionProduct::Bounds{*binder.array(name(lowest), shape), *binder.array(name(highest), shape)};
  };
  made.x_bounds = bounds(".input_min", ".input_max");
  made.y_bounds = bounds(".output_min", ".output_max");
  return made;
}

// Softmax of the first n of n_padded values; the padding becomes 0.
void softmax(float* x, int n, int n_padded) {
  const float largest = *std::max_element(x, x + n);
  float sum = 0;
  for (int i = 0; i < n; ++i) sum += x[i] = std::exp(x[i] - largest);
  for (int i = 0; i < n; ++i) x[i] /= sum;
  std::fill(x + n, x + n_padded, 0.0f);
}

}  // namespace

// The patches of an image, in the tower's order: block by block, rows of a block one after another.
struct VisionTower::Grid {
  int height, width;            // patches
  std::vector<float> cos, sin;  // [n, head_dim / 2]
  int n() const { return height * width; }

  Grid(const VisionConfig& config, int image_height, int image_width)
      : height(image_height / config.patch), width(image_width / config.patch) {
    for (int i = 0; i < n(); ++i) {
      const PatchPlace place = patch_place(i, width, config.merge);
      for (int pair = 0; pair < config.head_dim() / 2; ++pair) {
        const auto [by_column, inv_freq] = config.turn(pair);
        const double angle = (by_column ? place.column : place.row) * inv_freq;
        cos.push_back(float(std::cos(angle))), sin.push_back(float(std::sin(angle)));
      }
    }
  }
};

struct VisionTower::Buffers {
  std::vector<float> x, y;      // [n, width] residual stream; a block's normed input
  std::vector<float> wide;      // [n, wide_columns] a block's values; patches; merged rows
  std::vector<float> clamped;   // [n, clamped_columns] x of a product with bounds
  std::vector<float> heads[3];  // [heads, n_padded, dim_padded] q and k; [heads, dim, n_padded] v
  std::vector<float> scores;    // [threads, kTileRows, n_padded]

  static int wide_columns(const VisionConfig& c) {
    return std::max({3 * c.width, c.is_gemma() ? 2 * c.ffn : c.ffn, 3 * c.patch * c.patch, c.hidden});
  }
  static int clamped_columns(const VisionConfig& c) { return c.is_gemma() ? std::max(c.width, c.ffn) : 0; }
  static size_t floats(const VisionConfig& c, int n, int threads) {
    const size_t rows = padded(n), dim = padded(c.head_dim());
    return size_t(n) * (2 * c.width + wide_columns(c) + clamped_columns(c)) + size_t(c.n_heads) * rows * 3 * dim +
           size_t(threads) * kTileRows * (rows + 2 * dim);
  }
  Buffers(const VisionConfig& c, int n, int threads)
      : x(size_t(n) * c.width),
        y(size_t(n) * c.width),
        wide(size_t(n) * wide_columns(c)),
        clamped(size_t(n) * clamped_columns(c)) {
    const size_t rows = padded(n), dim = padded(c.head_dim());
    for (auto& head : heads) head.assign(size_t(c.n_heads) * rows * dim, 0.0f);
    scores.assign(size_t(threads) * kTileRows * (rows + dim), 0.0f);
  }
};

VisionTower::VisionTower(const std::string& path, int hidden, const CpuStreamOptions& options)
    : file_(open_model_file(path)), config_(read_vision_config(file_)) {
  config_.hidden = hidden;
  const bool is_nested = file_.tensors().find("model.visual.patch_embed.proj.weight") != nullptr;
  const char* const prefix = config_.is_gemma() ? "model." : is_nested ? "model.visual." : "visual.";
  Binder binder(file_, file_.gguf() != nullptr ? "" : prefix);
  bind(binder);
  stream_options_ = options;
  const int widest = std::max({config_.ffn, config_.width * config_.merge * config_.merge,
                               3 * config_.patch * config_.patch, config_.max_patches()});
  stream_options_.thread_scratch_bytes = linear_thread_scratch(widest);
}

void VisionTower::bind(Binder& binder) {
  if (config_.is_gemma())
    bind_gemma(binder);
  else
    bind_qwen(binder);
  binder.finish();
  finish({}, {config_.n_heads, config_.n_heads, config_.head_dim()}, binder.take_copies());
  fill_copies(1, {});
}

void VisionTower::set_patch_weights(std::vector<float> weights, const float* bias) {
  patch_weights_ = std::move(weights);
  weights_.patch = {{.data = patch_weights_.data(),
                     .type = DType::kF32,
                     .n_out = config_.width,
                     .n_in = 3 * config_.patch * config_.patch,
                     .name = "patch embedding",
                     .split = Split::none()},
                    bias};
}

void VisionTower::bind_qwen(Binder& binder) {
  const int w = config_.width, side = config_.patch;
  const int64_t p = side;
  // The tower takes two frames, and an image is both of them. A checkpoint has the weights of the frames in one tensor.
  const float *first, *second;
  size_t stride = size_t(p) * p;  // between the planes of a frame
  if (binder.is_gguf()) {
    first = binder.array({"v.patch_embd.weight", ""}, {w, 3, p, p});
    second = binder.array({"v.patch_embd.weight.1", ""}, {w, 3, p, p});
  } else {
    first = binder.array({"", "patch_embed.proj.weight"}, {w, 3, 2, p, p});
    second = first + stride, stride *= 2;
  }
  const int plane = side * side;
  std::vector<float> sum(size_t(w) * 3 * plane);
  for (size_t row = 0; row < size_t(w) * 3; ++row)
    for (int i = 0; i < plane; ++i) sum[row * plane + i] = first[row * stride + i] + second[row * stride + i];
  set_patch_weights(std::move(sum), binder.vector({"v.patch_embd.bias", "patch_embed.proj.bias"}, w));
  const TensorName table{"v.position_embd.weight", "pos_embed.weight"};
  const int n_positions = binder.height(table);
  config_.table_side = static_cast<int>(std::lround(std::sqrt(n_positions)));
  LB_CHECK(config_.table_side * config_.table_side == n_positions, kFormat, file_.path, ": the position table has ",
           n_positions, " rows, which is not a square");
  weights_.positions = binder.array(table, {n_positions, w});
  for (int i = 0; i < config_.n_layers; ++i) {
    const auto name = [&](const char* gguf, const char* hf) {
      return TensorName{cat("v.blk.", i, ".", gguf), cat("blocks.", i, ".", hf)};
    };
    weights_.layers.push_back({.attention_norm = norm_of(binder, name("ln1", "norm1"), w),
                               .mlp_norm = norm_of(binder, name("ln2", "norm2"), w),
                               .qkv = {product_of(binder, name("attn_qkv", "attn.qkv"), 3 * w, w)},
                               .out = product_of(binder, name("attn_out", "attn.proj"), w, w),
                               .up = product_of(binder, name("ffn_up", "mlp.linear_fc1"), config_.ffn, w),
                               .down = product_of(binder, name("ffn_down", "mlp.linear_fc2"), w, config_.ffn)});
  }
  const int merged = w * config_.merge * config_.merge;
  weights_.merger_norm = norm_of(binder, {"v.post_ln", "merger.norm"}, w);
  weights_.merger_up = product_of(binder, {"mm.0", "merger.linear_fc1"}, merged, merged);
  weights_.merger_down = product_of(binder, {"mm.2", "merger.linear_fc2"}, config_.hidden, merged);
  if (!binder.is_gguf())
    binder.skip([](std::string_view name) { return name.find("visual.") == std::string_view::npos; });
}

void VisionTower::bind_gemma(Binder& binder) {
  const int w = config_.width, p = config_.patch, plane = p * p;
  const TensorName patches{"v.patch_embd.weight", "vision_tower.patch_embedder.input_proj.weight"};
  std::vector<float> weights(size_t(w) * 3 * plane);
  if (binder.is_gguf()) {
    std::copy_n(binder.array(patches, {w, 3, p, p}), weights.size(), weights.begin());
  } else {  // pixel by pixel
    const float* from = binder.array(patches, {w, 3 * plane});
    for (size_t row = 0; row < size_t(w); ++row)
      for (int i = 0; i < plane; ++i)
        for (int channel = 0; channel < 3; ++channel)
          weights[(row * 3 + channel) * plane + i] = from[(row * plane + i) * 3 + channel];
  }
  set_patch_weights(std::move(weights), nullptr);
  const TensorName table{"v.position_embd.weight", "vision_tower.patch_embedder.position_embedding_table"};
  const std::vector<int64_t> sizes = binder.shape(table);
  LB_CHECK(sizes.size() == 3, kFormat, file_.path, ": the position tables have ", sizes.size(),
           " axes; expected 3: tables, positions, values");
  config_.table_side = static_cast<int>(sizes[1]);
  weights_.positions = binder.array(table, {2, sizes[1], w});
  const auto norm = [&](const TensorName& module, int n) {
    return binder.vector({module.gguf + ".weight", module.hf + ".weight"}, n);
  };
  for (int i = 0; i < config_.n_layers; ++i) {
    const auto name = [&](const char* gguf, const char* hf) {
      return TensorName{cat("v.blk.", i, ".", gguf), cat("vision_tower.encoder.layers.", i, ".", hf)};
    };
    const auto product = [&](const TensorName& module, int n_out, int n_in) {
      return bounded_product(binder, module, n_out, n_in);
    };
    weights_.layers.push_back(
        {.attention_norm = {norm(name("ln1", "input_layernorm"), w)},
         .mlp_norm = {norm(name("ln2", "pre_feedforward_layernorm"), w)},
         .attention_post_norm = {norm(name("attn_post_norm", "post_attention_layernorm"), w)},
         .mlp_post_norm = {norm(name("ffn_post_norm", "post_feedforward_layernorm"), w)},
         .qkv = {product(name("attn_q", "self_attn.q_proj"), w, w), product(name("attn_k", "self_attn.k_proj"), w, w),
                 product(name("attn_v", "self_attn.v_proj"), w, w)},
         .out = product(name("attn_out", "self_attn.o_proj"), w, w),
         .up = product(name("ffn_up", "mlp.up_proj"), config_.ffn, w),
         .down = product(name("ffn_down", "mlp.down_proj"), w, config_.ffn),
         .gate = product(name("ffn_gate", "mlp.gate_proj"), config_.ffn, w),
         .q_norm = norm(name("attn_q_norm", "self_attn.q_norm"), config_.head_dim()),
         .k_norm = norm(name("attn_k_norm", "self_attn.k_norm"), config_.head_dim())});
  }
  weights_.v_norm = binder.ones(config_.head_dim());
  const TensorName bias{"v.std_bias", "vision_tower.std_bias"}, scale{"v.std_scale", "vision_tower.std_scale"};
  if (binder.has(bias)) weights_.pool_bias = binder.vector(bias, w), weights_.pool_scale = binder.vector(scale, w);
  weights_.merger_norm = {binder.ones(w)};
  weights_.merger_down.weight = binder.matrix(
      {"mm.input_projection.weight", "embed_vision.embedding_projection.weight"}, config_.hidden, w, Split::none());
  // The text model, and towers of sound.
  binder.skip([&](std::string_view name) {
    if (binder.is_gguf()) return name.starts_with("a.") || name.starts_with("mm.a.");
    return !name.starts_with("model.vision_tower.") && !name.starts_with("model.embed_vision.");
  });
}

void VisionTower::visit(const WeightVisitor& visitor) {
  const auto product = [&](VisionProduct& one) {
    if (one.weight.data == nullptr) return;
    visitor.matrix(one.weight);
    if (one.bias != nullptr) visitor(one.bias, size_t(one.weight.n_out));
  };
  const auto vector = [&](const float*& at, int n) {
    if (at != nullptr) visitor(at, size_t(n));
  };
  const auto norm = [&](VisionWeights::Norm& one) {
    vector(one.weight, config_.width), vector(one.bias, config_.width);
  };
  product(weights_.patch);
  const size_t n_positions = size_t(config_.table_side) * (config_.is_gemma() ? 2 : config_.table_side);
  visitor(weights_.positions, n_positions * config_.width);
  for (VisionWeights::Layer& layer : weights_.layers) {
    norm(layer.attention_norm), norm(layer.mlp_norm), norm(layer.attention_post_norm), norm(layer.mlp_post_norm);
    for (VisionProduct& one : layer.qkv) product(one);
    product(layer.out), product(layer.up), product(layer.down), product(layer.gate);
    vector(layer.q_norm, config_.head_dim()), vector(layer.k_norm, config_.head_dim());
  }
  vector(weights_.v_norm, config_.head_dim());
  vector(weights_.pool_bias, config_.width), vector(weights_.pool_scale, config_.width);
  norm(weights_.merger_norm);
  product(weights_.merger_up), product(weights_.merger_down);
}

void VisionTower::for_each_group(const GroupVisitor& group) const {
  const auto alone = [&](const VisionProduct& one) {
    if (one.weight.data != nullptr) group({&one.weight});
  };
  alone(weights_.patch);
  for (const VisionWeights::Layer& layer : weights_.layers) {
    for (const VisionProduct& one : layer.qkv) alone(one);
    alone(layer.out), alone(layer.up), alone(layer.down), alone(layer.gate);
  }
  alone(weights_.merger_up), alone(weights_.merger_down);
}

std::vector<float> VisionTower::byte_levels() const {
  std::vector<float> levels;
  for (int channel = 0; channel < 3; ++channel)
    for (int v = 0; v < 256; ++v)
      levels.push_back((float(v) / 255.0f - config_.mean[channel]) / config_.deviation[channel]);
  return levels;
}

size_t VisionTower::scratch_bytes(int n_patches) const {
  return sizeof(float) * Buffers::floats(config_, n_patches, stream_options_.n_threads) +
         CpuStream::planned_bytes(stream_options_);
}

void VisionTower::normalise(const VisionWeights::Norm& norm, const float* x, float* y, int rows) {
  const int w = config_.width;
  if (norm.bias == nullptr)
    stream_->run(RmsNorm{x, norm.weight, y, rows, 1, w, w, w, config_.eps});
  else
    stream_->run(LayerNorm{x, norm.weight, norm.bias, y, rows, w, config_.eps});
}

void VisionTower::multiply(const VisionProduct& product, const float* x, float* y, Buffers& b, int rows,
                           const float* add) {
  if (product.x_bounds) {
    const auto [lowest, highest] = *product.x_bounds;
    stream_->run(Clamp{x, b.clamped.data(), rows, product.weight.n_in, lowest, highest});
    x = b.clamped.data();
  }
  stream_->run(lb::product(product.weight, x, y, rows, Activations::kF32, *stream_, add));
  if (product.y_bounds)
    stream_->run(Clamp{y, y, rows, product.weight.n_out, product.y_bounds->lowest, product.y_bounds->highest});
}

void VisionTower::add_branch(const VisionWeights::Norm& norm, float* z, Buffers& b, int rows) {
  stream_->run(AddNorm{b.x.data(), z, norm.weight, b.x.data(), rows, config_.width, config_.eps, 1});
}

// x = patches * w + bias + positions
void VisionTower::embed(std::span<const uint8_t> rgb, const Grid& grid, Buffers& b) {
  const int w = config_.width, n = grid.n();
  const std::vector<float> levels = byte_levels();
  stream_->run(ReadPatches{.rgb = rgb.data(),
                           .level = levels.data(),
                           .y = b.wide.data(),
                           .first = 0,
                           .rows = n,
                           .height = grid.height,
                           .columns = grid.width,
                           .patch = config_.patch,
                           .merge = config_.merge});
  multiply(weights_.patch, b.wide.data(), b.x.data(), b, n);
  if (config_.is_gemma()) {
    stream_->run(AddAxisPositions{.y = b.x.data(),
                                  .table = weights_.positions,
                                  .first = 0,
                                  .rows = n,
                                  .dim = w,
                                  .columns = grid.width,
                                  .side = config_.table_side,
                                  .merge = config_.merge});
    return;
  }
  stream_->run(AddBias{b.x.data(), weights_.patch.bias, n, w});
  stream_->run(AddPositions{.y = b.x.data(),
                            .table = weights_.positions,
                            .first = 0,
                            .rows = n,
                            .dim = w,
                            .height = grid.height,
                            .columns = grid.width,
                            .side = config_.table_side,
                            .merge = config_.merge});
}

// y = attention of all patches, from the normed rows in y
void VisionTower::attend(const VisionWeights::Layer& layer, const Grid& grid, Buffers& b) {
  const int n = grid.n(), w = config_.width, dim = config_.head_dim(), half = dim / 2;
  const size_t rows = padded(n), columns = padded(dim);
  // b.wide has q, k and v side by side, or one after another.
  const bool is_joined = layer.qkv.size() == 1;
  const size_t row_stride = is_joined ? 3 * w : w, part_stride = is_joined ? w : size_t(n) * w;
  for (size_t part = 0; part < layer.qkv.size(); ++part)
    multiply(layer.qkv[part], b.y.data(), b.wide.data() + part * part_stride, b, n);
  if (is_joined) stream_->run(AddBias{b.wide.data(), layer.qkv[0].bias, n, 3 * w});
  if (layer.q_norm != nullptr) {
    const float* norms[] = {layer.q_norm, layer.k_norm, weights_.v_norm};
    for (size_t part = 0; part < 3; ++part) {
      float* x = b.wide.data() + part * part_stride;
      stream_->run(RmsNorm{x, norms[part], x, n, config_.n_heads, dim, w, dim, config_.eps});
    }
  }
  ThreadPool& pool = stream_->pool();
  const float scale = config_.attention_scale();
  pool.parallel_for(config_.n_heads, [&](int head, int) {
    for (int part = 0; part < 2; ++part)
      for (int i = 0; i < n; ++i) {
        const float* from = b.wide.data() + i * row_stride + part * part_stride + size_t(head) * dim;
        float* to = b.heads[part].data() + (size_t(head) * rows + i) * columns;
        const float by = part == 0 ? scale : 1;
        for (int k = 0; k < half; ++k) {
          const float c = grid.cos[size_t(i) * half + k] * by, s = grid.sin[size_t(i) * half + k] * by;
          const auto [at, distance] = pair_columns(k, dim, config_.is_gemma());
          to[at] = from[at] * c - from[at + distance] * s;
          to[at + distance] = from[at + distance] * c + from[at] * s;
        }
      }
    for (int i = 0; i < n; ++i)
      for (int k = 0; k < dim; ++k)
        b.heads[2][(size_t(head) * columns + k) * rows + i] =
            b.wide[i * row_stride + 2 * part_stride + size_t(head) * dim + k];
  });
  const int n_tiles = (n + kTileRows - 1) / kTileRows;
  pool.parallel_for(config_.n_heads * n_tiles, [&](int task, int thread) {
    const int head = task / n_tiles, first = task % n_tiles * kTileRows, n_rows = std::min(kTileRows, n - first);
    float* scores = b.scores.data() + size_t(thread) * kTileRows * (rows + columns);
    float* sums = scores + kTileRows * rows;
    const auto times = [&](const float* weight, const float* x, float* y, size_t n_in, int n_out) {
      stream_->run(Linear{.w = weight,
                          .type = DType::kF32,
                          .x = x,
                          .add = nullptr,
                          .y = y,
                          .rows = n_rows,
                          .n_in = int(n_in),
                          .n_out = n_out,
                          .activations = Activations::kF32});
    };
    times(b.heads[1].data() + size_t(head) * rows * columns,
          b.heads[0].data() + (size_t(head) * rows + first) * columns, scores, columns, int(rows));
    for (int r = 0; r < n_rows; ++r) softmax(scores + r * rows, n, int(rows));
    times(b.heads[2].data() + size_t(head) * columns * rows, scores, sums, rows, dim);
    for (int r = 0; r < n_rows; ++r)
      std::copy_n(sums + size_t(r) * dim, dim, b.y.data() + size_t(first + r) * w + size_t(head) * dim);
  });
}

void VisionTower::check_image(size_t bytes, int height, int width) const {
  const int unit = config_.unit();
  LB_CHECK(
      height >= unit && width >= unit && height % unit == 0 && width % unit == 0 && bytes == size_t(height) * width * 3,
      kInvalid, "an image must be [height, width, 3] with sides that are multiples of ", unit, ", got ", height, " x ",
      width);
  const int64_t n = int64_t{height / config_.patch} * (width / config_.patch);
  LB_CHECK(n <= config_.max_patches(), kInvalid, "an image has at most ", config_.max_patches(), " patches, got ", n);
  const int longest = std::max(height, width) / config_.patch;
  LB_CHECK(!config_.is_gemma() || longest <= config_.table_side, kInvalid, "a side of an image has at most ",
           config_.table_side, " patches, got ", longest);
}

// The rows of the language model, from n patches.
std::vector<float> VisionTower::merge(Buffers& b, int n) {
  const int w = config_.width, block = config_.merge * config_.merge, n_rows = n / block;
  std::vector<float> rows(size_t(n_rows) * config_.hidden);
  if (config_.is_gemma()) {
    const float root = std::sqrt(float(w));
    stream_->run(PoolPatches{b.x.data(), weights_.pool_bias, weights_.pool_scale, b.y.data(), n_rows, w, block, root});
    normalise(weights_.merger_norm, b.y.data(), b.y.data(), n_rows);
    multiply(weights_.merger_down, b.y.data(), rows.data(), b, n_rows);
    return rows;
  }
  normalise(weights_.merger_norm, b.x.data(), b.y.data(), n);
  multiply(weights_.merger_up, b.y.data(), b.x.data(), b, n_rows);
  stream_->run(BiasGelu{b.x.data(), weights_.merger_up.bias, n_rows, w * block, true});
  multiply(weights_.merger_down, b.x.data(), rows.data(), b, n_rows);
  stream_->run(AddBias{rows.data(), weights_.merger_down.bias, n_rows, config_.hidden});
  return rows;
}

std::vector<float> VisionTower::encode(std::span<const uint8_t> rgb, int height, int width,
                                       const std::function<bool()>& interrupted) {
  check_image(rgb.size(), height, width);
  const Grid grid(config_, height, width);
  if (!stream_) stream_ = std::make_unique<CpuStream>(stream_options_);
  ThreadPool& pool = stream_->pool();
  Buffers b(config_, grid.n(), pool.size());
  const int n = grid.n();
  embed(rgb, grid, b);
  const int w = config_.width;
  for (const VisionWeights::Layer& layer : weights_.layers) {
    if (interrupted && interrupted()) fail(ErrorCode::kCancelled, "cancelled by the caller");
    normalise(layer.attention_norm, b.x.data(), b.y.data(), n);
    attend(layer, grid, b);
    if (config_.is_gemma()) {
      multiply(layer.out, b.y.data(), b.wide.data(), b, n);
      add_branch(layer.attention_post_norm, b.wide.data(), b, n);
      normalise(layer.mlp_norm, b.x.data(), b.y.data(), n);
      float* up = b.wide.data() + size_t(n) * config_.ffn;
      multiply(layer.gate, b.y.data(), b.wide.data(), b, n);
      multiply(layer.up, b.y.data(), up, b, n);
      stream_->run(GeGlu{b.wide.data(), up, b.wide.data(), n, config_.ffn, config_.ffn});
      multiply(layer.down, b.wide.data(), b.y.data(), b, n);
      add_branch(layer.mlp_post_norm, b.y.data(), b, n);
      continue;
    }
    multiply(layer.out, b.y.data(), b.x.data(), b, n, b.x.data());
    stream_->run(AddBias{b.x.data(), layer.out.bias, n, w});
    normalise(layer.mlp_norm, b.x.data(), b.y.data(), n);
    multiply(layer.up, b.y.data(), b.wide.data(), b, n);
    stream_->run(BiasGelu{b.wide.data(), layer.up.bias, n, config_.ffn, false});
    multiply(layer.down, b.wide.data(), b.x.data(), b, n, b.x.data());
    stream_->run(AddBias{b.x.data(), layer.down.bias, n, w});
  }
  std::vector<float> rows = merge(b, n);
  file_.check_intact();
  return rows;
}

}  // namespace lb
