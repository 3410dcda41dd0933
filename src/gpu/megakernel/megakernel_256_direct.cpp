// The megakernel for weights in blocks of 256 values, and the plain and Q8_0 weights that their recipes mix in, read by
// ordinary loads.
// Needs: no tma
#include "dialect.h"

#include "gpu/megakernel/formats.h"
#include "gpu/megakernel/megakernel.h"
#include "gpu/megakernel/product_direct.h"

namespace lb::gpu {

LB_KERNEL(megakernel_256_direct_kernel, Mega, kMegaThreads, 1) {
  megakernel<Formats<PlainCase, Block256Case>, DirectWeights>(p);
}

}  // namespace lb::gpu
