// VisionTower: the vision tower of Qwen3.5 or Gemma 4, which turns an image into rows of the language model's residual
// stream. Its encode() computes on the CPU in fp32; VisionPass computes on a device.
//   patches      [n, 3 * patch * patch] pixels, in blocks of merge x merge patches
//   x            patches * w + b + position table (bilinear), or + a table of columns + a table of rows
//   each layer   x += attention(norm(x)); x += mlp(norm(x)); attention with 2-D rope and without a mask
//   merger       of Qwen: norm, the rows of a block concatenated, a two-layer perceptron: [n / merge^2, hidden]
//                of Gemma: the mean of a block * sqrt(width), norm, a product
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cpu/cpu_stream.h"
#include "format/model_file.h"
#include "models/network.h"
#include "models/vision_config.h"

namespace lb {

// A product with a bias, or with bounds: y = clamp(w clamp(x)).
struct VisionProduct {
  Matrix weight;                // [n_out, n_in]
  const float* bias = nullptr;  // [n_out]; null: none
  struct Bounds {
    float lowest, highest;
  };
  std::optional<Bounds> x_bounds, y_bounds;
};

struct VisionWeights {
  struct Norm {
    const float *weight = nullptr, *bias = nullptr;  // [width]; without a bias it is an RmsNorm; without both, none
  };
  struct Layer {
    Norm attention_norm, mlp_norm;
    Norm attention_post_norm, mlp_post_norm;           // of the branches before they are added
    std::vector<VisionProduct> qkv;                    // one product of q, k and v, or one of each
    VisionProduct out, up, down, gate;                 // gate without data: gelu(up) instead of gelu(gate) * up
    const float *q_norm = nullptr, *k_norm = nullptr;  // [head_dim]; null: none
  };
  VisionProduct patch;     // [width, 3 * patch * patch], of Qwen the sum of the weights of both frames
  const float* positions;  // [table_side^2, width], or [2, table_side, width]
  std::vector<Layer> layers;
  const float* v_norm = nullptr;                            // [head_dim] ones, if q and k have norms
  const float *pool_bias = nullptr, *pool_scale = nullptr;  // [width]; null: none
  Norm merger_norm;
  VisionProduct merger_up, merger_down;  // merger_up without data: merger_down alone
};

class VisionTower final : public Network {
 public:
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
  void bind_qwen(Binder& binder);
  void bind_gemma(Binder& binder);
  // The patch embedding, from weights that the tower's memory holds.
  void set_patch_weights(std::vector<float> weights, const float* bias);
  void embed(std::span<const uint8_t> rgb, const Grid& grid, Buffers& b);
  void attend(const VisionWeights::Layer& layer, const Grid& grid, Buffers& b);
  void normalise(const VisionWeights::Norm& norm, const float* x, float* y, int rows);
  // y = x w (+ add, of a product without bounds); the bias follows.
  void multiply(const VisionProduct& product, const float* x, float* y, Buffers& b, int rows,
                const float* add = nullptr);
  std::vector<float> merge(Buffers& b, int n);
  // x += the branch in z, which has its own norm
  void add_branch(const VisionWeights::Norm& norm, float* z, Buffers& b, int rows);

  ModelFile file_;
  VisionConfig config_;
  CpuStreamOptions stream_options_;
  std::unique_ptr<CpuStream> stream_;
  std::vector<float> patch_weights_;  // what weights_.patch points to until a device has it
  VisionWeights weights_{};
};

}  // namespace lb
