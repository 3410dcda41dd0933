// The megakernel for weights in blocks of 32 values mixed with plain weights, read by ordinary loads.
// Needs: no tma
#include "dialect.h"

#include "gpu/megakernel/formats.h"
#include "gpu/megakernel/megakernel.h"
#include "gpu/megakernel/product_direct.h"

namespace lb::gpu {

LB_KERNEL(megakernel_32_direct_kernel, Mega, kMegaThreads, 1) {
  megakernel<Formats<PlainCase, Block32Case>, DirectWeights>(p);
}

}  // namespace lb::gpu
