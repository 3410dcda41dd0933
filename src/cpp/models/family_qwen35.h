// Configuration of Qwen3.5, shared with its prediction block (mtp.cpp).
#pragma once

#include <string_view>
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

inline constexpr std::string_view kQwen35 = "qwen35", kQwen35Moe = "qwen35moe";
inline constexpr HfDefault kQwen35MoeDefaults[] = {
    {"hidden_size", 2048},
    {"num_hidden_layers", 40},
    {"num_attention_heads", 16},
    {"num_key_value_heads", 2},
    {"head_dim", 256},
    {"max_position_embeddings", 32768},
    {"rms_norm_eps", 1e-6},
    {"linear_conv_kernel_dim", 4},
    {"linear_key_head_dim", 128},
    {"linear_value_head_dim", 128},
    {"linear_num_key_heads", 16},
    {"linear_num_value_heads", 32},
    {"moe_intermediate_size", 512},
    {"shared_expert_intermediate_size", 512},
    {"num_experts_per_tok", 8},
    {"num_experts", 256},
};

struct Qwen35Config {
  ModelInfo info;
  int n_prediction_blocks = 0;  // after the main layers, GGUF only
  std::vector<bool> recurrent;  // [n_layers]
  RecurrentShape delta{};
  std::vector<int> mrope_sections;
};

// The fields of a file of this architecture: kQwen35 or kQwen35Moe.
Fields qwen35_fields(const ModelFile& file, std::string_view architecture);
Qwen35Config read_qwen35(const Fields& fields);

}  // namespace lb
