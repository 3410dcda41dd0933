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

// --- configuration

constexpr int kMaxSize = 1 << 16;

// An integer from 1 to kMaxSize.
int size_of(std::optional<int64_t> value, const std::string& where) {
  LB_CHECK(value && *value >= 1 && *value <= kMaxSize, kFormat, where, " must be between 1 and ", kMaxSize,
           value ? cat(", found ", *value) : std::string(", and is missing"));
  return static_cast<int>(*value);
}

VisionConfig read_gguf(const GgufMetadata& metadata, const std::string& path) {
  const auto text = [&](const char* key) { return metadata.find_string(key).value_or(""); };
  LB_CHECK(text("general.architecture") == "clip" && text("clip.projector_type") == "qwen3vl_merger", kUnsupported,
           path,
           ": images: the vision tower of Qwen3.5 is supported (architecture clip, projector qwen3vl_merger), not ",
           text("general.architecture"), ", ", text("clip.projector_type"));
  const auto size = [&](const char* key) { return size_of(metadata.find_int(key), cat(path, ": ", key)); };
  VisionConfig config{
      .n_layers = size("clip.vision.block_count"),
      .width = size("clip.vision.embedding_length"),
      .n_heads = size("clip.vision.attention.head_count"),
      .ffn = size("clip.vision.feed_forward_length"),
      .patch = size("clip.vision.patch_size"),
      .merge = metadata.find_int("clip.vision.spatial_merge_size") ? size("clip.vision.spatial_merge_size") : 2};
  config.eps = static_cast<float>(metadata.find_float("clip.vision.attention.layer_norm_epsilon").value_or(1e-6));
  for (const auto& [key, to] :
       {std::pair("clip.vision.image_mean", &config.mean), std::pair("clip.vision.image_std", &config.deviation)})
    if (const auto values = metadata.find_float_array(key)) {
      LB_CHECK(values->size() == 3, kFormat, path, ": ", key, " must list 3 numbers, found ", values->size());
      std::ranges::copy(*values, to->begin());
    }
  if (const auto deep = metadata.find_uint_array("clip.vision.is_deepstack_layers"))
    LB_CHECK(std::ranges::count(*deep, 0u) == std::ssize(*deep), kUnsupported, path,
             ": images: a tower with deepstack layers (Qwen3-VL) is not supported yet");
  return config;
}

VisionConfig read_folder(const Json& config, const std::string& path) {
  const Json* vision = config.find("vision_config");
  LB_CHECK(vision != nullptr && vision->is_object(), kUnsupported, path,
           "/config.json: images: there is no vision_config, so the checkpoint has no vision tower");
  const auto size = [&](const char* key) {
    const Json* value = vision->find(key);
    return size_of(value == nullptr ? std::nullopt : std::optional(value->integer()),
                   cat(path, "/config.json: vision_config.", key));
  };
  if (const Json* deep = vision->find("deepstack_visual_indexes"); deep != nullptr && !deep->is_null())
    LB_CHECK(deep->array().empty(), kUnsupported, path,
             ": images: a tower with deepstack layers (Qwen3-VL) is not supported yet");
  return {.n_layers = size("depth"),
          .width = size("hidden_size"),
          .n_heads = size("num_heads"),
          .ffn = size("intermediate_size"),
          .patch = size("patch_size"),
          .merge = size("spatial_merge_size")};
}

VisionWeights::Norm norm_of(Binder& binder, const TensorName& module, int width) {
  return {binder.vector({module.gguf + ".weight", module.hf + ".weight"}, width),
          binder.vector({module.gguf + ".bias", module.hf + ".bias"}, width)};
}

VisionProduct product_of(Binder& binder, const TensorName& module, int n_out, int n_in) {
  return {binder.matrix({module.gguf + ".weight", module.hf + ".weight"}, n_out, n_in, Split::none()),
          binder.vector({module.gguf + ".bias", module.hf + ".bias"}, n_out)};
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
    // Half of the pairs turn by the row, half by the column.
    const int half = config.head_dim() / 4;
    for (int i = 0; i < n(); ++i) {
      const PatchPlace place = patch_place(i, width, config.merge);
      for (const int position : {place.row, place.column})
        for (int pair = 0; pair < half; ++pair) {
          const double angle = position * std::pow(VisionConfig::kTheta, -double(pair) / half);
          cos.push_back(float(std::cos(angle))), sin.push_back(float(std::sin(angle)));
        }
    }
  }
};

struct VisionTower::Buffers {
  std::vector<float> x, y;      // [n, width] residual stream; a block's normed input
  std::vector<float> wide;      // [n, max(3 width, ffn, 3 patch^2, hidden)] a block's values; patches; merged rows
  std::vector<float> heads[3];  // [heads, n_padded, dim_padded] q and k; [heads, dim, n_padded] v
  std::vector<float> scores;    // [threads, kTileRows, n_padded]

  static int wide_columns(const VisionConfig& c) {
    return std::max({3 * c.width, c.ffn, 3 * c.patch * c.patch, c.hidden});
  }
  static size_t floats(const VisionConfig& c, int n, int threads) {
    const size_t rows = padded(n), dim = padded(c.head_dim());
    return size_t(n) * (2 * c.width + wide_columns(c)) + size_t(c.n_heads) * rows * 3 * dim +
           size_t(threads) * kTileRows * (rows + 2 * dim);
  }
  Buffers(const VisionConfig& c, int n, int threads)
      : x(size_t(n) * c.width), y(size_t(n) * c.width), wide(size_t(n) * wide_columns(c)) {
    const size_t rows = padded(n), dim = padded(c.head_dim());
    for (auto& head : heads) head.assign(size_t(c.n_heads) * rows * dim, 0.0f);
    scores.assign(size_t(threads) * kTileRows * (rows + dim), 0.0f);
  }
};

VisionTower::VisionTower(const std::string& path, int hidden, const CpuStreamOptions& options)
    : file_(open_model_file(path)) {
  const GgufFile* gguf = file_.gguf();
  config_ =
      gguf != nullptr ? read_gguf(gguf->metadata, file_.path) : read_folder(file_.safetensors()->config, file_.path);
  config_.hidden = hidden;
  LB_CHECK(config_.width % config_.n_heads == 0 && config_.head_dim() % 4 == 0, kFormat, file_.path, ": a width of ",
           config_.width, " values cannot be divided among ", config_.n_heads, " vision heads");
  LB_CHECK(config_.merge <= 8 && config_.patch <= 64, kUnsupported, file_.path, ": images: patches of ", config_.patch,
           " pixels in blocks of ", config_.merge, " are not supported; supported: up to 64, in blocks of up to 8");
  const bool is_nested = file_.tensors().find("model.visual.patch_embed.proj.weight") != nullptr;
  Binder binder(file_, gguf != nullptr ? "" : is_nested ? "model.visual." : "visual.");
  bind(binder);
  stream_options_ = options;
  const int widest = std::max(
      {config_.ffn, config_.width * config_.merge * config_.merge, 3 * config_.patch * config_.patch, kMaxPatches});
  stream_options_.thread_scratch_bytes = linear_thread_scratch(widest);
}

void VisionTower::bind(Binder& binder) {
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
  patch_sum_.resize(size_t(w) * 3 * plane);
  for (size_t row = 0; row < size_t(w) * 3; ++row)
    for (int i = 0; i < plane; ++i) patch_sum_[row * plane + i] = first[row * stride + i] + second[row * stride + i];
  weights_.patch = {{.data = patch_sum_.data(),
                     .type = DType::kF32,
                     .n_out = w,
                     .n_in = 3 * plane,
                     .name = "patch embedding",
                     .split = Split::none()},
                    binder.vector({"v.patch_embd.bias", "patch_embed.proj.bias"}, w)};
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
    weights_.layers.push_back({norm_of(binder, name("ln1", "norm1"), w), norm_of(binder, name("ln2", "norm2"), w),
                               product_of(binder, name("attn_qkv", "attn.qkv"), 3 * w, w),
                               product_of(binder, name("attn_out", "attn.proj"), w, w),
                               product_of(binder, name("ffn_up", "mlp.linear_fc1"), config_.ffn, w),
                               product_of(binder, name("ffn_down", "mlp.linear_fc2"), w, config_.ffn)});
  }
  const int merged = w * config_.merge * config_.merge;
  weights_.merger_norm = norm_of(binder, {"v.post_ln", "merger.norm"}, w);
  weights_.merger_up = product_of(binder, {"mm.0", "merger.linear_fc1"}, merged, merged);
  weights_.merger_down = product_of(binder, {"mm.2", "merger.linear_fc2"}, config_.hidden, merged);
  if (!binder.is_gguf())
    binder.skip([](std::string_view name) { return name.find("visual.") == std::string_view::npos; });
  binder.finish();
  finish({}, {config_.n_heads, config_.n_heads, config_.head_dim()}, binder.take_copies());
  fill_copies(1, {});
}

void VisionTower::visit(const WeightVisitor& visitor) {
  const auto product = [&](VisionProduct& one) {
    visitor.matrix(one.weight);
    visitor(one.bias, size_t(one.weight.n_out));
  };
  const auto norm = [&](VisionWeights::Norm& one) {
    visitor(one.weight, size_t(config_.width)), visitor(one.bias, size_t(config_.width));
  };
  product(weights_.patch);
  visitor(weights_.positions, size_t(config_.table_side) * config_.table_side * config_.width);
  for (VisionWeights::Layer& layer : weights_.layers) {
    norm(layer.attention_norm), norm(layer.mlp_norm);
    product(layer.qkv), product(layer.out), product(layer.up), product(layer.down);
  }
  norm(weights_.merger_norm);
  product(weights_.merger_up), product(weights_.merger_down);
}

void VisionTower::for_each_group(const GroupVisitor& group) const {
  group({&weights_.patch.weight});
  for (const VisionWeights::Layer& layer : weights_.layers)
    for (const VisionProduct* one : {&layer.qkv, &layer.out, &layer.up, &layer.down}) group({&one->weight});
  group({&weights_.merger_up.weight}), group({&weights_.merger_down.weight});
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
  stream_->run(LayerNorm{x, norm.weight, norm.bias, y, rows, config_.width, config_.eps});
}

void VisionTower::multiply(const VisionProduct& product, const float* x, float* y, int rows, const float* add) {
  stream_->run(lb::product(product.weight, x, y, rows, Activations::kF32, *stream_, add));
}

// x = patches * w + bias + the position table, bilinear
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
  multiply(weights_.patch, b.wide.data(), b.x.data(), n);
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
  multiply(layer.qkv, b.y.data(), b.wide.data(), n);
  stream_->run(AddBias{b.wide.data(), layer.qkv.bias, n, 3 * w});
  ThreadPool& pool = stream_->pool();
  const float scale = 1 / std::sqrt(float(dim));
  pool.parallel_for(config_.n_heads, [&](int head, int) {
    for (int part = 0; part < 2; ++part)
      for (int i = 0; i < n; ++i) {
        const float* from = b.wide.data() + size_t(i) * 3 * w + size_t(part) * w + size_t(head) * dim;
        float* to = b.heads[part].data() + (size_t(head) * rows + i) * columns;
        const float by = part == 0 ? scale : 1;
        for (int k = 0; k < half; ++k) {
          const float c = grid.cos[size_t(i) * half + k] * by, s = grid.sin[size_t(i) * half + k] * by;
          to[k] = from[k] * c - from[k + half] * s;
          to[k + half] = from[k + half] * c + from[k] * s;
        }
      }
    for (int i = 0; i < n; ++i)
      for (int k = 0; k < dim; ++k)
        b.heads[2][(size_t(head) * columns + k) * rows + i] =
            b.wide[size_t(i) * 3 * w + 2 * size_t(w) + size_t(head) * dim + k];
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
  LB_CHECK(n <= kMaxPatches, kInvalid, "an image has at most ", kMaxPatches, " patches, got ", n);
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
    multiply(layer.out, b.y.data(), b.x.data(), n, b.x.data());
    stream_->run(AddBias{b.x.data(), layer.out.bias, n, w});
    normalise(layer.mlp_norm, b.x.data(), b.y.data(), n);
    multiply(layer.up, b.y.data(), b.wide.data(), n);
    stream_->run(BiasGelu{b.wide.data(), layer.up.bias, n, config_.ffn, false});
    multiply(layer.down, b.wide.data(), b.x.data(), n, b.x.data());
    stream_->run(AddBias{b.x.data(), layer.down.bias, n, w});
  }
  normalise(weights_.merger_norm, b.x.data(), b.y.data(), n);
  const int blocks = config_.merge * config_.merge, n_rows = n / blocks;
  multiply(weights_.merger_up, b.y.data(), b.x.data(), n_rows);
  stream_->run(BiasGelu{b.x.data(), weights_.merger_up.bias, n_rows, w * blocks, true});
  std::vector<float> rows(size_t(n_rows) * config_.hidden);
  multiply(weights_.merger_down, b.x.data(), rows.data(), n_rows);
  stream_->run(AddBias{rows.data(), weights_.merger_down.bias, n_rows, config_.hidden});
  file_.check_intact();
  return rows;
}

}  // namespace lb
