// The megakernel for plain weights, read by ordinary loads.
// Needs: no tma
#include "dialect.h"

#include "gpu/megakernel/formats.h"
#include "gpu/megakernel/megakernel.h"
#include "gpu/megakernel/product_direct.h"

namespace lb::gpu {

LB_KERNEL(megakernel_plain_direct_kernel, Mega, kMegaThreads, 1) { megakernel<Formats<PlainCase>, DirectWeights>(p); }

}  // namespace lb::gpu
