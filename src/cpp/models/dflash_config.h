// Configuration of a DFlash draft model, read from config.json or from either kind of GGUF metadata.
#pragma once

#include <vector>

#include "models/fields.h"
#include "models/model.h"

namespace lb {

struct DflashConfig {
  ModelInfo info;             // sizes of the draft layers
  int block = 0;              // rows of a block: the newest token, then mask tokens
  int mask_token = 0;         // embedded in the rows to be drafted
  std::vector<int> taps;      // layers of the target whose output the draft reads, in the order of fc's columns
  std::vector<bool> sliding;  // [n_layers]
  std::vector<bool> causal;   // [n_layers] inside the block
  int window = 0;             // window of the sliding layers, in tokens
  float logit_scale = 1, logit_softcap = 0;  // 0: none
  RopePairs pairs = RopePairs::kHalves;
};

// Convolutions and selector of DFlash 2.
struct Dflash2Config {
  int conv_taps = 0, conv_group = 0;  // rows that a convolution spans; channels that share a kernel
  int rank = 0;                       // of the selector's codebooks
  int top_k = 0;                      // candidates per selection
};

// The key prefix of a GGUF file, for Fields. Throws if the architecture is not a DFlash draft.
std::string dflash_architecture(const ModelFile& file);
bool is_dflash(const ModelFile& file);

// n_taps: derived from fc's columns. Throws kUnsupported, with both models' sizes, if the draft is for another target.
DflashConfig read_dflash(const Fields& fields, const ModelInfo& target, int n_taps);
Dflash2Config read_dflash2(const Fields& fields, int hidden);

}  // namespace lb
