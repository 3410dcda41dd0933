// Selects the tables of bodies that this machine can run.
#include "cpu/kernels.h"

#include "cpu/scalar/scalar.h"

#if defined(__x86_64__)
#include "cpu/x86_features.h"
#endif

namespace lb::cpu {

extern const Kernels kPortableKernels;
#if defined(__x86_64__)
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;
#endif

namespace {

constexpr Kernels kScalarKernels = {
    .embed = scalar::embed_rows,
    .rms_norm = scalar::rms_norm,
    .gated_rms_norm = scalar::gated_rms_norm,
    .rope = scalar::rope,
    .swiglu = scalar::swiglu,
    .geglu = scalar::geglu,
    .soft_cap = scalar::soft_cap,
    .clamped_swiglu = scalar::clamped_swiglu,
    .delta_prepare = scalar::delta_prepare,
    .top_tokens = scalar::top_tokens,
    .block_conv = scalar::block_conv,
    .causal_conv = scalar::causal_conv,
    .gated_delta = scalar::gated_delta,
    .kv_append = scalar::kv_append,
    .attention = scalar::attention,
    .attention_add = scalar::attention_add,
    .attention_finish = scalar::attention_finish,
    .key_sums = scalar::key_sums,
    .key_scores = scalar::key_scores,
    .quantize_q8 = scalar::quantize_q8,
    .linear_q8 = scalar::linear_q8,
    .linear_f32 = scalar::linear_f32,
};

#if defined(__x86_64__)
const X86Features& features() {
  static const X86Features found;
  return found;
}
#endif

}  // namespace

const Kernels* kernels_for(Isa isa) {
  switch (isa) {
    case Isa::kScalar: return &kScalarKernels;
    case Isa::kPortable: return &kPortableKernels;
#if defined(__x86_64__)
    case Isa::kAvx2: return features().has_avx2() ? &kAvx2Kernels : nullptr;
    case Isa::kAvx512: return features().has_avx512() ? &kAvx512Kernels : nullptr;
#endif
    default: return nullptr;
  }
}

}  // namespace lb::cpu
