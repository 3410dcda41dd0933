// VisionConfig: the shape of a vision tower, read from a multimodal projector (GGUF) or a checkpoint's config.json.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "format/model_file.h"

namespace lb {

enum class TowerKind : uint8_t { kQwen, kGemma };  // of Qwen3.5, of Gemma 4

struct VisionConfig {
  static constexpr int kMaxPatches = 16384;  // of an image of any tower

  TowerKind kind = TowerKind::kQwen;
  int n_layers = 0, width = 0, n_heads = 0, ffn = 0;
  int patch = 0, merge = 0;  // pixels of a patch's side; patches of a block's side
  int table_side = 0;        // rows of the position table: table_side^2 of Qwen, of each axis of Gemma
  int hidden = 0;            // of the language model
  float eps = 1e-6f;
  std::array<float, 3> mean{0.5f, 0.5f, 0.5f}, deviation{0.5f, 0.5f, 0.5f};

  bool is_gemma() const { return kind == TowerKind::kGemma; }
  int head_dim() const { return width / n_heads; }
  int unit() const { return patch * merge; }  // the sides of an image are multiples of this
  int max_rows() const { return is_gemma() ? 1120 : kMaxPatches / (merge * merge); }  // of an image
  int max_patches() const { return max_rows() * merge * merge; }
  // Axis and inverse frequency of a pair of the 2-D rope, [head_dim / 2]: half of the pairs turn by the row, half by
  // the column. Gemma's columns come first.
  struct Turn {
    bool by_column;
    double inv_freq;
  };
  Turn turn(int pair) const;
  float attention_scale() const;
};

// Throws kUnsupported for other towers.
VisionConfig read_vision_config(const ModelFile& file);

}  // namespace lb
