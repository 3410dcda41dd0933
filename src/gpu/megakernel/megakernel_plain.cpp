// The megakernel for plain weights, copied by bulk copies.
// Needs: tma
#define LB_HELPER_THREADS 64
#include "dialect.h"

#include "gpu/megakernel/formats.h"
#include "gpu/megakernel/megakernel.h"
#include "gpu/megakernel/product_stream.h"

namespace lb::gpu {

LB_KERNEL(megakernel_plain_kernel, Mega, kMegaThreads + kMegaHelpers, 1) {
  megakernel<Formats<PlainCase>, StreamedWeights>(p);
}

}  // namespace lb::gpu
