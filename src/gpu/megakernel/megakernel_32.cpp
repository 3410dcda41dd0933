// The megakernel for weights in blocks of 32 values mixed with plain weights, copied by bulk copies.
// Needs: tma
#define LB_HELPER_THREADS 64
#include "dialect.h"

#include "gpu/megakernel/formats.h"
#include "gpu/megakernel/megakernel.h"
#include "gpu/megakernel/product_stream.h"

namespace lb::gpu {

LB_KERNEL(megakernel_32_kernel, Mega, kMegaThreads + kMegaHelpers, 1) {
  megakernel<Formats<PlainCase, Block32Case>, StreamedWeights>(p);
}

}  // namespace lb::gpu
