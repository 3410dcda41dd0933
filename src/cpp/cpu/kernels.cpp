// Which table of bodies this machine can run.
#include "cpu/kernels.h"

#include "cpu/scalar/scalar.h"

namespace lb::cpu {

namespace {

constexpr Kernels kScalarKernels = {
    .embed = scalar::embed_rows,
    .rms_norm = scalar::rms_norm,
    .gated_rms_norm = scalar::gated_rms_norm,
    .rope = scalar::rope,
    .swiglu = scalar::swiglu,
    .delta_prepare = scalar::delta_prepare,
    .causal_conv = scalar::causal_conv,
    .gated_delta = scalar::gated_delta,
    .kv_append = scalar::kv_append,
    .attention = scalar::attention,
    .attention_merge = scalar::attention_merge,
    .quantize_q8 = scalar::quantize_q8,
    .linear_q8 = scalar::linear_q8,
    .linear_f32 = scalar::linear_f32,
};

}  // namespace

const Kernels* kernels_for(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
    case Isa::kPortable: return &kScalarKernels;  // until the vector bodies are here
    default: return nullptr;
  }
}

}  // namespace lb::cpu
