#include "models/vision_pass.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <ranges>

#include "base/error.h"
#include "models/blocks.h"

namespace lb {
namespace {

constexpr int kMaxPages = VisionTower::kMaxPatches / kPageTokens;

}  // namespace

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
      chunk_(kChunk / (config_.merge * config_.merge) * config_.merge * config_.merge) {
  const size_t n = VisionTower::kMaxPatches, rows = chunk_, pairs = config_.head_dim() / 2, width = config_.width;
  const size_t values = 3 * size_t(config_.patch) * config_.patch, blocks = size_t(config_.merge) * config_.merge;
  const size_t heads = size_t(config_.n_heads) * padded_;
  rgb_ = carver.take<uint8_t>(values, n);
  levels_ = carver.take<float>(3 * 256), inv_freq_ = carver.take<float>(pairs), axis_ = carver.take<uint8_t>(pairs);
  positions_ = carver.take<int32_t>(3 * n), page_table_ = carver.take<int32_t>(kMaxPages);
  n_past_ = carver.take<int32_t>(1);
  cos_ = carver.take<float>(pairs, n), sin_ = carver.take<float>(pairs, n);
  x_ = carver.take<float>(width, n), y_ = carver.take<float>(width, rows);
  wide_ = carver.take<float>(std::max({3 * width, size_t(config_.ffn), values}), rows);
  q_ = carver.take<float>(heads, rows);
  o_ = carver.take<float>(std::max(heads * rows, rows / blocks * config_.hidden));
  const size_t page = heads * kPageTokens * (type_ == KvType::kF32 ? 4 : 2);
  k_ = carver.take<std::byte>(page, kMaxPages), v_ = carver.take<std::byte>(page, kMaxPages);
}

void VisionPass::upload_tables(Stream& stream) const {
  const std::vector<float> levels = tower_.byte_levels();
  stream.upload(levels_, levels.data(), levels.size() * sizeof(float));
  // Half of the pairs turn by the row, half by the column.
  const int pairs = config_.head_dim() / 2, half = pairs / 2;
  std::vector<float> inv_freq(pairs);
  std::vector<uint8_t> axis(pairs);
  for (int i = 0; i < pairs; ++i) {
    inv_freq[i] = float(std::pow(VisionConfig::kTheta, -double(i % half) / half));
    axis[i] = i < half ? 1 : 2;
  }
  stream.upload(inv_freq_, inv_freq.data(), inv_freq.size() * sizeof(float));
  stream.upload(axis_, axis.data(), axis.size());
  std::vector<int32_t> pages(kMaxPages);
  std::iota(pages.begin(), pages.end(), 0);
  stream.upload(page_table_, pages.data(), pages.size() * sizeof(int32_t));
}

float* VisionPass::rows_of(const Chunk& chunk) const { return x_ + size_t(chunk.first) * config_.width; }

void VisionPass::normalise(const VisionWeights::Norm& norm, const float* x, int rows, Stream& stream) const {
  run(LayerNorm{x, norm.weight, norm.bias, y_, rows, config_.width, config_.eps}, stream);
}

void VisionPass::multiply(const VisionProduct& product, const float* x, float* y, int rows, Stream& stream,
                          const float* add) const {
  run(lb::product(product.weight, x, y, rows, activations_, stream, add), stream);
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
  multiply(layer.qkv, y_, wide_, chunk.rows, stream);
  const size_t at = size_t(chunk.first) * config_.head_dim() / 2;
  run(SplitHeads{.x = wide_,
                 .bias = layer.qkv.bias,
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
                 .first = chunk.first},
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
                .scale = 1 / std::sqrt(float(config_.head_dim()))},
      stream);
  run(MergeHeads{o_, y_, chunk.rows, config_.n_heads, config_.head_dim(), padded_}, stream);
  float* x = rows_of(chunk);
  multiply(layer.out, y_, x, chunk.rows, stream, x);
  run(AddBias{x, layer.out.bias, chunk.rows, config_.width}, stream);
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
      float* x = rows_of(chunk);
      normalise(layer.mlp_norm, x, chunk.rows, stream);
      multiply(layer.up, y_, wide_, chunk.rows, stream);
      run(BiasGelu{wide_, layer.up.bias, chunk.rows, config_.ffn, false}, stream);
      multiply(layer.down, wide_, x, chunk.rows, stream, x);
      run(AddBias{x, layer.down.bias, chunk.rows, config_.width}, stream);
    }
  }

  const VisionWeights& weights = tower_.weights();
  const int blocks = config_.merge * config_.merge;
  std::vector<float> rows(size_t(n) / blocks * config_.hidden);
  for (const Chunk& chunk : chunks) {
    const int n_rows = chunk.rows / blocks;
    normalise(weights.merger_norm, rows_of(chunk), chunk.rows, stream);
    multiply(weights.merger_up, y_, wide_, n_rows, stream);
    run(BiasGelu{wide_, weights.merger_up.bias, n_rows, config_.width * blocks, true}, stream);
    multiply(weights.merger_down, wide_, o_, n_rows, stream);
    run(AddBias{o_, weights.merger_down.bias, n_rows, config_.hidden}, stream);
    stream.download(rows.data() + size_t(chunk.first) / blocks * config_.hidden, o_,
                    size_t(n_rows) * config_.hidden * sizeof(float));
  }
  return rows;
}

}  // namespace lb
