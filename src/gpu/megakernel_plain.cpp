// The megakernel of models of plain weights.
// Needs: tma
#define LB_HELPERS 64
#include "dialect.h"

#include "mega_formats.h"
#include "mega_product.h"
#include "megakernel.h"

namespace lb::gpu {

LB_KERNEL(megakernel_plain_kernel, Mega, kMegaThreads + kMegaHelpers, 1) {
  megakernel<Formats<PlainCase>, StreamedWeights>(p);
}

}  // namespace lb::gpu
