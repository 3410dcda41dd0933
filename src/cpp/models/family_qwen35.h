// Configuration of Qwen3.5, shared with its prediction block (mtp.cpp).
#pragma once

#include <vector>

#include "models/family.h"

namespace lb {

inline constexpr HfDefault kQwen35Defaults[] = {
    {"hidden_size", 4096},
    {"intermediate_size", 12288},
    {"num_hidden_layers", 32},
    {"num_attention_heads", 16},
    {"num_key_value_heads", 4},
    {"head_dim", 256},
    {"max_position_embeddings", 32768},
    {"rms_norm_eps", 1e-6},
    {"linear_conv_kernel_dim", 4},
    {"linear_key_head_dim", 128},
    {"linear_value_head_dim", 128},
    {"linear_num_key_heads", 16},
    {"linear_num_value_heads", 32},
};

inline constexpr AttentionKind kQwen35Attention{.qk_norms = true, .gated = true, .norms = HfFix::kAddOne};

struct Qwen35Config {
  ModelInfo info{.architecture = "qwen35"};
  int n_prediction_blocks = 0;  // after the main layers, GGUF only
  std::vector<bool> recurrent;  // [n_layers]
  RecurrentShape delta{};
  std::vector<int> mrope_sections;
};

Qwen35Config read_qwen35(const Fields& fields);

}  // namespace lb
