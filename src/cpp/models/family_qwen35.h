// Configuration of Qwen3.5, which its prediction block (mtp.cpp) shares.
#pragma once

#include <vector>

#include "models/family.h"

namespace lb {

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
