// VisionTower: the vision tower of Qwen3.5, which turns an image into rows of the language model's residual stream. Its
// encode() computes on the CPU in fp32; VisionPass computes on a device.
//   patches      [n, 3 * patch * patch] pixels, in blocks of merge x merge patches
//   x            patches * w + b + position table (bilinear)
//   each layer   x += attention(layer_norm(x)); x += mlp(layer_norm(x)); attention with 2-D rope and without a mask
//   merger       layer_norm, the rows of a block concatenated, a two-layer perceptron: [n / merge^2, hidden]
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cpu/cpu_stream.h"
#include "format/model_file.h"
#include "models/network.h"

namespace lb {

struct VisionConfig {
  int n_layers = 0, width = 0, n_heads = 0, ffn = 0;
  int patch = 0, merge = 0;  // pixels of a patch's side; patches of a block's side
  int table_side = 0;        // the position table has table_side^2 rows
  int hidden = 0;            // of the language model
  float eps = 1e-6f;
  static constexpr double kTheta = 10000;  // of the 2-D rope
  std::array<float, 3> mean{0.5f, 0.5f, 0.5f}, deviation{0.5f, 0.5f, 0.5f};

  int head_dim() const { return width / n_heads; }
  int unit() const { return patch * merge; }  // the sides of an image are multiples of this
};

// A product with a bias.
struct VisionProduct {
  Matrix weight;      // [n_out, n_in]
  const float* bias;  // [n_out]
};

struct VisionWeights {
  struct Norm {
    const float *weight, *bias;  // [width]
  };
  struct Layer {
    Norm attention_norm, mlp_norm;
    VisionProduct qkv, out, up, down;
  };
  VisionProduct patch;     // [width, 3 * patch * patch] sum of the weights of both frames
  const float* positions;  // [table_side^2, width]
  std::vector<Layer> layers;
  Norm merger_norm;
  VisionProduct merger_up, merger_down;
};

class VisionTower final : public Network {
 public:
  static constexpr int kMaxPatches = 16384;  // of an image: 4096 rows with merge = 2

  // path: a multimodal projector (GGUF, architecture clip) or a checkpoint folder whose files have the tower. Throws
  // kUnsupported for other towers. hidden: the language model's.
  VisionTower(const std::string& path, int hidden, const CpuStreamOptions& options);

  const VisionConfig& config() const { return config_; }
  const VisionWeights& weights() const { return weights_; }
  std::vector<float> byte_levels() const;  // [3, 256] value of a byte, by channel
  void for_each_group(const GroupVisitor& group) const override;
  // Bytes of a projector's file. A checkpoint folder's are among the model's.
  size_t own_file_bytes() const { return file_.gguf() == nullptr ? 0 : file_.tensors().total_bytes(); }
  size_t private_bytes() const { return vector_bytes() + copied_bytes(); }
  size_t scratch_bytes(int n_patches) const;  // while an image is encoded
  // Throws kInvalid unless an image is [height, width, 3] of whole rows of the tower, and not too large.
  void check_image(size_t bytes, int height, int width) const;

  // rgb: [height, width, 3]. Returns the rows [height / unit, width / unit, hidden]. One call at a time. Throws
  // kCancelled when `interrupted`, polled between layers, returns true.
  std::vector<float> encode(std::span<const uint8_t> rgb, int height, int width,
                            const std::function<bool()>& interrupted = {});

 protected:
  void visit(const WeightVisitor& visitor) override;

 private:
  struct Grid;  // the patches of an image
  struct Buffers;

  void bind(Binder& binder);
  void embed(std::span<const uint8_t> rgb, const Grid& grid, Buffers& b);
  void attend(const VisionWeights::Layer& layer, const Grid& grid, Buffers& b);
  void normalise(const VisionWeights::Norm& norm, const float* x, float* y, int rows);
  // y = x w (+ add); the bias follows.
  void multiply(const VisionProduct& product, const float* x, float* y, int rows, const float* add = nullptr);

  ModelFile file_;
  VisionConfig config_;
  CpuStreamOptions stream_options_;
  std::unique_ptr<CpuStream> stream_;
  std::vector<float> patch_sum_;  // what weights_.patch points to until a device has it
  VisionWeights weights_{};
};

}  // namespace lb
