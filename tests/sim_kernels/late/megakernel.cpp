// A megakernel of plain weights whose schedule is wrong from the third token on: block 1 counts from another number
// than the others, which wait in vain for its mailboxes.
#define LB_HELPER_THREADS 64
#include "dialect.h"

#include "gpu/megakernel/formats.h"
#include "gpu/megakernel/megakernel.h"
#include "gpu/megakernel/product_stream.h"

namespace lb::gpu {

LB_KERNEL(megakernel_plain_kernel, Mega, kMegaThreads + kMegaHelpers, 1) {
  Mega schedule = p;
  if (p.first >= 2 * uint32_t(p.n_phases) * uint32_t(n_blocks())) {
    schedule.first -= block_id() == 1 ? 1 : 0;
    schedule.timeout_ns = 2'000'000;  // the host's would take many loads of mailboxes
  }
  megakernel<Formats<PlainCase>, StreamedWeights>(schedule);
}

}  // namespace lb::gpu
