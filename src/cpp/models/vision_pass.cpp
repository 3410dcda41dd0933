#include "models/vision_pass.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <ranges>

#include "base/error.h"
#include "models/blocks.h"

namespace lb {

int VisionPass::padded_dim(const VisionConfig& config, Activations activations) {
  const int dim = config.head_dim();
  if (activations == Activations::kF32 && dim <= kMaxHeadDim) return (dim + 7) / 8 * 8;
  for (const int size : {64, 128, 256})
    if (dim <= size) return size;
  fail(ErrorCode::kUnsupported, "images: vision heads of ", dim, " values are not supported on a GPU; at most 256 are");
}

VisionPass::VisionPass(const VisionTower& tower, Activations activations, Carver& carver)
    : tower_(tower),
      config_(tower.config()),
      activations_(activations),
      type_(activations == Activations::kF32 ? KvType::kF32 : KvType::kF16),
      padded_(padded_dim(config_, activations)),
      chunk_(kChunk / (config_.merge * config_.merge) * config_.merge * config_.merge),
      n_pages_((config_.max_patches() + kPageTokens - 1) / kPageTokens) {
  const size_t n = config_.max_patches(), rows = chunk_, pairs = config_.head_dim() / 2, width = config_.width;
  const size_t values = 3 * size_t(config_.patch) * config_.patch, blocks = size_t(config_.merge) * config_.merge;
  const size_t heads = size_t(config_.n_heads) * padded_;
  rgb_ = carver.take<uint8_t>(values, n);
  levels_ = carver.take<float>(3 * 256), inv_freq_ = carver.take<float>(pairs), axis_ = carver.take<uint8_t>(pairs);
  positions_ = carver.take<int32_t>(3 * n), page_table_ = carver.take<int32_t>(n_pages_);
  n_past_ = carver.take<int32_t>(1);
  cos_ = carver.take<float>(pairs, n), sin_ = carver.take<float>(pairs, n);
  x_ = carver.take<float>(width, n), y_ = carver.take<float>(width, rows);
  const size_t ffn = config_.ffn;
  wide_ = carver.take<float>(std::max({3 * width, config_.is_gemma() ? 2 * ffn : ffn, values}), rows);
  clamped_ = carver.take<float>(config_.is_gemma() ? std::max(width, ffn) : 0, rows);
  q_ = carver.take<float>(heads, rows);
  o_ = carver.take<float>(std::max(heads * rows, rows / blocks * config_.hidden));
  const size_t page = heads * kPageTokens * (type_ == KvType::kF32 ? 4 : 2);
  k_ = carver.take<std::byte>(page, n_pages_), v_ = carver.take<std::byte>(page, n_pages_);
}

void VisionPass::upload_tables(Stream& stream) const {
  const std::vector<float> levels = tower_.byte_levels();
  stream.upload(levels_, levels.data(), levels.size() * sizeof(float));
  const int pairs = config_.head_dim() / 2;
  std::vector<float> inv_freq(pairs);
  std::vector<uint8_t> axis(pairs);
  for (int i = 0; i < pairs; ++i) {
    const auto [by_column, turn] = config_.turn(i);
    inv_freq[i] = float(turn);
    axis[i] = by_column ? 2 : 1;
  }
  stream.upload(inv_freq_, inv_freq.data(), inv_freq.size() * sizeof(float));
  stream.upload(axis_, axis.data(), axis.size());
  std::vector<int32_t> pages(n_pages_);
  std::iota(pages.begin(), pages.end(), 0);
  stream.upload(page_table_, pages.data(), pages.size() * sizeof(int32_t));
}

float* VisionPass::rows_of(const Chunk& chunk) const { return x_ + size_t(chunk.first) * config_.width; }

void VisionPass::normalise(const VisionWeights::Norm& norm, const float* x, int rows, Stream& stream) const {
  const int w = config_.width;
  if (norm.bias == nullptr)
    run(RmsNorm{x, norm.weight, y_, rows, 1, w, w, w, config_.eps}, stream);
  else
    run(LayerNorm{x, norm.weight, norm.bias, y_, rows, w, config_.eps}, stream);
}

void VisionPass::multiply(const VisionProduct& product, const float* x, float* y, int rows, Stream& stream,
                          const float* add) const {
  if (product.x_bounds) {
    const auto [lowest, highest] = *product.x_bounds;
    run(Clamp{x, clamped_, rows, product.weight.n_in, lowest, highest}, stream);
    x = clamped_;
  }
  run(lb::product(product.weight, x, y, rows, activations_, stream, add), stream);
  if (product.y_bounds)
    run(Clamp{y, y, rows, product.weight.n_out, product.y_bounds->lowest, product.y_bounds->highest}, stream);
}

void VisionPass::add_branch(const VisionWeights::Norm& norm, float* z, const Chunk& chunk, Stream& stream) const {
  float* x = rows_of(chunk);
  run(AddNorm{x, z, norm.weight, x, chunk.rows, config_.width, config_.eps, 1}, stream);
}

void VisionPass::embed(const Chunk& chunk, int height, int columns, Stream& stream) const {
  float* x = rows_of(chunk);
  run(ReadPatches{.rgb = rgb_,
                  .level = levels_,
                  .y = wide_,
                  .first = chunk.first,
                  .rows = chunk.rows,
                  .height = height,
                  .columns = columns,
                  .patch = config_.patch,
                  .merge = config_.merge},
      stream);
  multiply(tower_.weights().patch, wide_, x, chunk.rows, stream);
  if (config_.is_gemma())
    return run(AddAxisPositions{.y = x,
                                .table = tower_.weights().positions,
                                .first = chunk.first,
                                .rows = chunk.rows,
                                .dim = config_.width,
                                .columns = columns,
                                .side = config_.table_side,
                                .merge = config_.merge},
               stream);
  run(AddBias{x, tower_.weights().patch.bias, chunk.rows, config_.width}, stream);
  run(AddPositions{.y = x,
                   .table = tower_.weights().positions,
                   .first = chunk.first,
                   .rows = chunk.rows,
                   .dim = config_.width,
                   .height = height,
                   .columns = columns,
                   .side = config_.table_side,
                   .merge = config_.merge},
      stream);
}

// q of the chunk unless null, and its K and V in the pages
void VisionPass::split_heads(const VisionWeights::Layer& layer, const Chunk& chunk, float* q, Stream& stream) const {
  normalise(layer.attention_norm, rows_of(chunk), chunk.rows, stream);
  // q, k and v side by side, or one after another.
  const long w = config_.width, dim = config_.head_dim();
  const bool is_joined = layer.qkv.size() == 1;
  const long part_stride = is_joined ? w : w * chunk.rows;
  for (size_t part = 0; part < layer.qkv.size(); ++part)
    if (is_joined || part > 0 || q != nullptr)
      multiply(layer.qkv[part], y_, wide_ + part * part_stride, chunk.rows, stream);
  if (layer.q_norm != nullptr) {
    const float* norms[] = {layer.q_norm, layer.k_norm, tower_.weights().v_norm};
    for (int part = q == nullptr ? 1 : 0; part < 3; ++part) {
      float* x = wide_ + part * part_stride;
      run(RmsNorm{x, norms[part], x, chunk.rows, config_.n_heads, int(dim), w, dim, config_.eps}, stream);
    }
  }
  const size_t at = size_t(chunk.first) * config_.head_dim() / 2;
  run(SplitHeads{.x = wide_,
                 .bias = is_joined ? layer.qkv[0].bias : nullptr,
                 .cos = cos_ + at,
                 .sin = sin_ + at,
                 .q = q,
                 .k = k_,
                 .v = v_,
                 .type = type_,
                 .rows = chunk.rows,
                 .heads = config_.n_heads,
                 .dim = config_.head_dim(),
                 .padded = padded_,
                 .first = chunk.first,
                 .row_stride = is_joined ? 3 * w : w,
                 .part_stride = part_stride,
                 .is_by_axis = config_.is_gemma()},
      stream);
}

// x += attention of the chunk's q to all patches
void VisionPass::attend(const VisionWeights::Layer& layer, const Chunk& chunk, Stream& stream) const {
  run(Attention{.q = q_,
                .gate = nullptr,
                .o = o_,
                .cache = {.k = k_,
                          .v = v_,
                          .page_table = page_table_,
                          .k_type = type_,
                          .v_type = type_,
                          .n_kv_heads = config_.n_heads,
                          .head_dim = padded_},
                .tree = {},
                .n_past = n_past_,
                .rows = 1,
                .n_heads = config_.n_heads * chunk.rows,
                .gate_row_stride = 0,
                .gate_head_stride = 0,
                .scale = config_.attention_scale()},
      stream);
  run(MergeHeads{o_, y_, chunk.rows, config_.n_heads, config_.head_dim(), padded_}, stream);
  if (layer.attention_post_norm.weight != nullptr) {
    multiply(layer.out, y_, wide_, chunk.rows, stream);
    return add_branch(layer.attention_post_norm, wide_, chunk, stream);
  }
  float* x = rows_of(chunk);
  multiply(layer.out, y_, x, chunk.rows, stream, x);
  run(AddBias{x, layer.out.bias, chunk.rows, config_.width}, stream);
}

void VisionPass::feed_forward(const VisionWeights::Layer& layer, const Chunk& chunk, Stream& stream) const {
  float* x = rows_of(chunk);
  const int rows = chunk.rows, ffn = config_.ffn;
  normalise(layer.mlp_norm, x, rows, stream);
  if (layer.gate.weight.data != nullptr) {
    float* up = wide_ + size_t(rows) * ffn;
    multiply(layer.gate, y_, wide_, rows, stream);
    multiply(layer.up, y_, up, rows, stream);
    run(GeGlu{wide_, up, wide_, rows, ffn, ffn}, stream);
    multiply(layer.down, wide_, y_, rows, stream);
    return add_branch(layer.mlp_post_norm, y_, chunk, stream);
  }
  multiply(layer.up, y_, wide_, rows, stream);
  run(BiasGelu{wide_, layer.up.bias, rows, ffn, false}, stream);
  multiply(layer.down, wide_, x, rows, stream, x);
  run(AddBias{x, layer.down.bias, rows, config_.width}, stream);
}

void VisionPass::merge(const Chunk& chunk, Stream& stream) const {
  const VisionWeights& weights = tower_.weights();
  const int w = config_.width, block = config_.merge * config_.merge, n_rows = chunk.rows / block;
  if (config_.is_gemma()) {
    run(PoolPatches{rows_of(chunk), weights.pool_bias, weights.pool_scale, y_, n_rows, w, block, std::sqrt(float(w))},
        stream);
    normalise(weights.merger_norm, y_, n_rows, stream);
    return multiply(weights.merger_down, y_, o_, n_rows, stream);
  }
  normalise(weights.merger_norm, rows_of(chunk), chunk.rows, stream);
  multiply(weights.merger_up, y_, wide_, n_rows, stream);
  run(BiasGelu{wide_, weights.merger_up.bias, n_rows, w * block, true}, stream);
  multiply(weights.merger_down, wide_, o_, n_rows, stream);
  run(AddBias{o_, weights.merger_down.bias, n_rows, config_.hidden}, stream);
}

std::vector<float> VisionPass::encode(std::span<const uint8_t> rgb, int height, int width, Stream& stream,
                                      const std::function<void()>& between_layers) const {
  const int patch_rows = height / config_.patch, columns = width / config_.patch, n = patch_rows * columns;
  std::vector<Chunk> chunks;
  for (int first = 0; first < n; first += chunk_) chunks.push_back({first, std::min(chunk_, n - first)});

  std::vector<int32_t> positions(size_t{3} * n);
  for (int i = 0; i < n; ++i) {
    const PatchPlace place = patch_place(i, columns, config_.merge);
    positions[size_t(n) + i] = place.row, positions[size_t{2} * n + i] = place.column;
  }
  const int32_t last = n - 1;
  stream.upload(rgb_, rgb.data(), rgb.size());
  stream.upload(positions_, positions.data(), positions.size() * sizeof(int32_t));
  stream.upload(n_past_, &last, sizeof(last));
  run(RopeTable{positions_, axis_, inv_freq_, cos_, sin_, n, config_.head_dim() / 2, 1}, stream);

  for (const Chunk& chunk : chunks) embed(chunk, patch_rows, columns, stream);
  for (const VisionWeights::Layer& layer : tower_.weights().layers) {
    between_layers();
    // The buffer holds q of one chunk: the last one attends first, the others compute their q again.
    for (const Chunk& chunk : chunks) split_heads(layer, chunk, &chunk == &chunks.back() ? q_ : nullptr, stream);
    for (const Chunk& chunk : std::views::reverse(chunks)) {
      if (&chunk != &chunks.back()) split_heads(layer, chunk, q_, stream);
      attend(layer, chunk, stream);
      feed_forward(layer, chunk, stream);
    }
  }

  const int blocks = config_.merge * config_.merge;
  std::vector<float> rows(size_t(n) / blocks * config_.hidden);
  for (const Chunk& chunk : chunks) {
    const int n_rows = chunk.rows / blocks;
    merge(chunk, stream);
    stream.download(rows.data() + size_t(chunk.first) / blocks * config_.hidden, o_,
                    size_t(n_rows) * config_.hidden * sizeof(float));
  }
  return rows;
}

}  // namespace lb
