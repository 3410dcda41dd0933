// The megakernel of models of weights in blocks of 32 values, and plain ones among them.
// Needs: tma
#define LB_HELPERS 64
#include "dialect.h"

#include "mega_formats.h"
#include "mega_product.h"
#include "megakernel.h"

namespace lb::gpu {

LB_KERNEL(megakernel_32_kernel, Mega, kMegaThreads + kMegaHelpers, 1) {
  megakernel<Formats<PlainCase, RunCase>, StreamedWeights>(p);
}

}  // namespace lb::gpu
