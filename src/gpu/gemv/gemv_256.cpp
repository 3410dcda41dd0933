// The mat-vec kernels of types with blocks of 256 values, for x of 8 and of 16 bits and for longer rows. Body:
// gemv.h.
#include "dialect.h"

#include "gpu/gemv/formats_runs16.h"
#include "gpu/gemv/formats_runs32.h"
#include "gpu/gemv/gemv.h"

namespace lb::gpu {

template <int kBits>
using Q4_K = RunFormat<DType::kQ4_K, kBits>;
template <int kBits>
using Q5_K = RunFormat<DType::kQ5_K, kBits>;
template <int kBits>
using IQ4_XS = RunFormat<DType::kIQ4_XS, kBits>;

LB_KERNEL(gemv_q2_k_int8_kernel, Gemv, kGemvThreads, 2) { gemv<Q2_KFormat<8>, 1, 4>(p); }
LB_KERNEL(gemv_q2_k_int8_wide_kernel, Gemv, kGemvWideQuantThreads, 1) { gemv<Q2_KFormat<8>, 1, 4>(p); }
LB_KERNEL(gemv_q2_k_int16_kernel, Gemv, kGemvThreads, 2) { gemv<Q2_KFormat<16>, 1, 4>(p); }
LB_KERNEL(gemv_q2_k_int16_wide_kernel, Gemv, kGemvWideThreads, 1) { gemv<Q2_KFormat<16>, 1, 4>(p); }

LB_KERNEL(gemv_q3_k_int8_kernel, Gemv, kGemvThreads, 2) { gemv<Q3_KFormat<8>, 1, 4>(p); }
LB_KERNEL(gemv_q3_k_int8_wide_kernel, Gemv, kGemvWideQuantThreads, 1) { gemv<Q3_KFormat<8>, 1, 4>(p); }
LB_KERNEL(gemv_q3_k_int16_kernel, Gemv, kGemvThreads, 2) { gemv<Q3_KFormat<16>, 1, 4>(p); }
LB_KERNEL(gemv_q3_k_int16_wide_kernel, Gemv, kGemvWideThreads, 1) { gemv<Q3_KFormat<16>, 1, 4>(p); }

LB_KERNEL(gemv_q4_k_int8_kernel, Gemv, kGemvThreads, 2) { gemv<Q4_K<8>, 1, 8>(p); }
LB_KERNEL(gemv_q4_k_int8_wide_kernel, Gemv, kGemvWideQuantThreads, 1) { gemv<Q4_K<8>, 1, 4>(p); }
LB_KERNEL(gemv_q4_k_int16_kernel, Gemv, kGemvThreads, 2) { gemv<Q4_K<16>, 1, 8>(p); }
LB_KERNEL(gemv_q4_k_int16_wide_kernel, Gemv, kGemvWideQuantThreads, 1) { gemv<Q4_K<16>, 1, 4>(p); }

LB_KERNEL(gemv_q5_k_int8_kernel, Gemv, kGemvThreads, 2) { gemv<Q5_K<8>, 1, 4>(p); }
LB_KERNEL(gemv_q5_k_int8_wide_kernel, Gemv, kGemvWideQuantThreads, 1) { gemv<Q5_K<8>, 1, 2>(p); }
LB_KERNEL(gemv_q5_k_int16_kernel, Gemv, kGemvThreads, 2) { gemv<Q5_K<16>, 1, 4>(p); }
LB_KERNEL(gemv_q5_k_int16_wide_kernel, Gemv, kGemvWideQuantThreads, 1) { gemv<Q5_K<16>, 1, 2>(p); }

LB_KERNEL(gemv_q6_k_int8_kernel, Gemv, kGemvThreads, 2) { gemv<Q6_KFormat<8>, 1, 4>(p); }
LB_KERNEL(gemv_q6_k_int8_wide_kernel, Gemv, kGemvWideQuantThreads, 1) { gemv<Q6_KFormat<8>, 1, 2>(p); }
LB_KERNEL(gemv_q6_k_int16_kernel, Gemv, kGemvThreads, 2) { gemv<Q6_KFormat<16>, 1, 4>(p); }
LB_KERNEL(gemv_q6_k_int16_wide_kernel, Gemv, kGemvWideQuantThreads, 1) {
  gemv<Q6_KFormat<16>, 1, 4>(p);
}

LB_KERNEL(gemv_iq4_xs_int8_kernel, Gemv, kGemvThreads, 2) { gemv<IQ4_XS<8>, 1, 8>(p); }
LB_KERNEL(gemv_iq4_xs_int8_wide_kernel, Gemv, kGemvWideQuantThreads, 1) { gemv<IQ4_XS<8>, 1, 4>(p); }
LB_KERNEL(gemv_iq4_xs_int16_kernel, Gemv, kGemvThreads, 2) { gemv<IQ4_XS<16>, 1, 8>(p); }
LB_KERNEL(gemv_iq4_xs_int16_wide_kernel, Gemv, kGemvWideQuantThreads, 1) { gemv<IQ4_XS<16>, 1, 4>(p); }

}  // namespace lb::gpu
