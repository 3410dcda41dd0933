// Phi-4 and Phi-4-mini: q, k and v in one matrix, gate and up in one matrix, rope over a part of the head, LongRoPE.
#include "models/family.h"

namespace lb {
namespace {

void read(const Fields& fields, FamilyConfig& config) {
  if (!fields.is_gguf()) config.info.n_rot = rotated_dims(fields, config.info.head_dim);
  read_window(fields, config);
}

}  // namespace

const Family kPhi3 = {
    .gguf = "phi3",
    .hf = {"phi3"},
    .defaults = {{"rms_norm_eps", 1e-5}, {"max_position_embeddings", 4096}},
    .attention = {.is_joined = true},
    .joins_gate_and_up = true,
    .read = read,
};

}  // namespace lb
