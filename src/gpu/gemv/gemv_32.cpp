// The mat-vec kernels of types with blocks of 32 values, for x of 8 and of 16 bits and for longer rows. Body:
// gemv.h.
#include "dialect.h"

#include "gpu/gemv/formats_runs32.h"
#include "gpu/gemv/gemv.h"

namespace lb::gpu {

template <int kBits>
using Q4_0 = RunFormat<DType::kQ4_0, kBits>;
template <int kBits>
using Q4_1 = RunFormat<DType::kQ4_1, kBits>;
template <int kBits>
using Q5_0 = RunFormat<DType::kQ5_0, kBits>;
template <int kBits>
using Q5_1 = RunFormat<DType::kQ5_1, kBits>;
template <int kBits>
using IQ4_NL = RunFormat<DType::kIQ4_NL, kBits>;
template <int kBits>
using MXFP4 = RunFormat<DType::kMXFP4, kBits>;

LB_KERNEL(gemv_q8_0_int8_kernel, Gemv, kGemvThreads, 2) { gemv<Q8_0Format<8>, 1, 8>(p); }
LB_KERNEL(gemv_q8_0_int8_wide_kernel, Gemv, kGemvWideQuantThreads, 1) { gemv<Q8_0Format<8>, 2, 4>(p); }
LB_KERNEL(gemv_q8_0_int16_kernel, Gemv, kGemvThreads, 2) { gemv<Q8_0Format<16>, 1, 8>(p); }
LB_KERNEL(gemv_q8_0_int16_wide_kernel, Gemv, kGemvWideQuantThreads, 1) {
  gemv<Q8_0Format<16>, 2, 4>(p);
}

LB_KERNEL(gemv_q4_0_int8_kernel, Gemv, kGemvThreads, 2) { gemv<Q4_0<8>, 1, 8>(p); }
LB_KERNEL(gemv_q4_0_int8_wide_kernel, Gemv, kGemvWideQuantThreads, 1) { gemv<Q4_0<8>, 1, 8>(p); }
LB_KERNEL(gemv_q4_0_int16_kernel, Gemv, kGemvThreads, 2) { gemv<Q4_0<16>, 1, 8>(p); }
LB_KERNEL(gemv_q4_0_int16_wide_kernel, Gemv, kGemvWideQuantThreads, 1) { gemv<Q4_0<16>, 1, 8>(p); }

LB_KERNEL(gemv_q4_1_int8_kernel, Gemv, kGemvThreads, 2) { gemv<Q4_1<8>, 1, 8>(p); }
LB_KERNEL(gemv_q4_1_int8_wide_kernel, Gemv, kGemvWideQuantThreads, 1) { gemv<Q4_1<8>, 1, 8>(p); }
LB_KERNEL(gemv_q4_1_int16_kernel, Gemv, kGemvThreads, 2) { gemv<Q4_1<16>, 1, 8>(p); }
LB_KERNEL(gemv_q4_1_int16_wide_kernel, Gemv, kGemvWideQuantThreads, 1) { gemv<Q4_1<16>, 1, 8>(p); }

LB_KERNEL(gemv_q5_0_int8_kernel, Gemv, kGemvThreads, 2) { gemv<Q5_0<8>, 1, 8>(p); }
LB_KERNEL(gemv_q5_0_int8_wide_kernel, Gemv, kGemvWideQuantThreads, 1) { gemv<Q5_0<8>, 1, 4>(p); }
LB_KERNEL(gemv_q5_0_int16_kernel, Gemv, kGemvThreads, 2) { gemv<Q5_0<16>, 1, 8>(p); }
LB_KERNEL(gemv_q5_0_int16_wide_kernel, Gemv, kGemvWideQuantThreads, 1) { gemv<Q5_0<16>, 1, 4>(p); }

LB_KERNEL(gemv_q5_1_int8_kernel, Gemv, kGemvThreads, 2) { gemv<Q5_1<8>, 1, 8>(p); }
LB_KERNEL(gemv_q5_1_int8_wide_kernel, Gemv, kGemvWideQuantThreads, 1) { gemv<Q5_1<8>, 1, 4>(p); }
LB_KERNEL(gemv_q5_1_int16_kernel, Gemv, kGemvThreads, 2) { gemv<Q5_1<16>, 1, 8>(p); }
LB_KERNEL(gemv_q5_1_int16_wide_kernel, Gemv, kGemvWideQuantThreads, 1) { gemv<Q5_1<16>, 1, 4>(p); }

LB_KERNEL(gemv_iq4_nl_int8_kernel, Gemv, kGemvThreads, 2) { gemv<IQ4_NL<8>, 1, 8>(p); }
LB_KERNEL(gemv_iq4_nl_int8_wide_kernel, Gemv, kGemvWideQuantThreads, 1) { gemv<IQ4_NL<8>, 1, 4>(p); }
LB_KERNEL(gemv_iq4_nl_int16_kernel, Gemv, kGemvThreads, 2) { gemv<IQ4_NL<16>, 1, 8>(p); }
LB_KERNEL(gemv_iq4_nl_int16_wide_kernel, Gemv, kGemvWideQuantThreads, 1) { gemv<IQ4_NL<16>, 1, 4>(p); }

LB_KERNEL(gemv_mxfp4_int8_kernel, Gemv, kGemvThreads, 2) { gemv<MXFP4<8>, 1, 8>(p); }
LB_KERNEL(gemv_mxfp4_int8_wide_kernel, Gemv, kGemvWideQuantThreads, 1) { gemv<MXFP4<8>, 1, 4>(p); }
LB_KERNEL(gemv_mxfp4_int16_kernel, Gemv, kGemvThreads, 2) { gemv<MXFP4<16>, 1, 8>(p); }
LB_KERNEL(gemv_mxfp4_int16_wide_kernel, Gemv, kGemvWideQuantThreads, 1) { gemv<MXFP4<16>, 1, 4>(p); }

}  // namespace lb::gpu
