// VisionPass: the vision tower on a device, as ops. Patches pass in chunks, so that the buffers of a large image stay
// bounded. Attention among all patches is attention of one row: the patches are its query heads, which share the heads
// of K and V, and the row sees every slot.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/memory.h"
#include "models/vision_tower.h"
#include "ops/attention.h"
#include "ops/stream.h"

namespace lb {

class VisionPass {
 public:
  static constexpr int kChunk = 4096;  // patches that the buffers of a layer hold, at most: 1024 rows with merge = 2

  // activations: kF32 keeps K and V in fp32, else they are f16. Carves the buffers; a carver without memory only
  // counts.
  VisionPass(const VisionTower& tower, Activations activations, Carver& carver);
  // Head dimension that the attention kernels read: a head's values, then zeros. Throws kUnsupported.
  static int padded_dim(const VisionConfig& config, Activations activations);

  // Fills the tables. Call once, after the constructor with memory.
  void upload_tables(Stream& stream) const;
  // As VisionTower::encode(); the sides are checked. Calls between_layers() before each layer, when nothing on the host
  // is waited for: it may throw.
  std::vector<float> encode(std::span<const uint8_t> rgb, int height, int width, Stream& stream,
                            const std::function<void()>& between_layers) const;

 private:
  struct Chunk {
    int first, rows;
  };
  void embed(const Chunk& chunk, int height, int columns, Stream& stream) const;
  void split_heads(const VisionWeights::Layer& layer, const Chunk& chunk, float* q, Stream& stream) const;
  void attend(const VisionWeights::Layer& layer, const Chunk& chunk, Stream& stream) const;
  void normalise(const VisionWeights::Norm& norm, const float* x, int rows, Stream& stream) const;
  // x += the branch in z, which has its own norm
  void add_branch(const VisionWeights::Norm& norm, float* z, const Chunk& chunk, Stream& stream) const;
  // x += mlp(norm(x))
  void feed_forward(const VisionWeights::Layer& layer, const Chunk& chunk, Stream& stream) const;
  // o_ = the rows of the language model
  void merge(const Chunk& chunk, Stream& stream) const;
  // y = x w (+ add, of a product without bounds); the bias follows.
  void multiply(const VisionProduct& product, const float* x, float* y, int rows, Stream& stream,
                const float* add = nullptr) const;
  float* rows_of(const Chunk& chunk) const;

  const VisionTower& tower_;
  const VisionConfig& config_;
  Activations activations_;
  KvType type_;
  int padded_, chunk_, n_pages_;  // values of a head; patches of a chunk; pages of the largest image
  uint8_t* rgb_;
  float *levels_, *inv_freq_;         // [3, 256]; [head_dim / 2]
  uint8_t* axis_;                     // [head_dim / 2]
  int32_t *positions_, *page_table_;  // [3, patches]; [pages]
  int32_t* n_past_;                   // [1] patches - 1
  float *cos_, *sin_;                 // [patches, head_dim / 2]
  float* x_;                          // [patches, width] residual stream
  float *y_, *wide_;                  // [chunk, width]; [chunk, max(3 width, ffn or 2 ffn, 3 patch^2)]
  float* clamped_;                    // [chunk, max(width, ffn)] x of a product with bounds
  float *q_, *o_;                     // [heads, chunk, padded]; o_ also [chunk / merge^2, hidden]
  std::byte *k_, *v_;                 // pages [heads, 64, padded]
};

}  // namespace lb
