// The megakernel for weights in blocks of 256 values, and the plain and Q8_0 weights that their recipes mix in, copied
// by bulk copies.
// Needs: tma
#define LB_HELPER_THREADS 64
#include "dialect.h"

#include "gpu/megakernel/formats.h"
#include "gpu/megakernel/megakernel.h"
#include "gpu/megakernel/product_stream.h"

namespace lb::gpu {

LB_KERNEL(megakernel_256_kernel, Mega, kMegaThreads + kMegaHelpers, 1) {
  megakernel<Formats<PlainCase, Block256Case>, StreamedWeights>(p);
}

}  // namespace lb::gpu
