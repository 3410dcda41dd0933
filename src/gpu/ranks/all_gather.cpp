// AllGather: the columns of all ranks, side by side. A block sends its part of the rank's values to every peer, then a
// flag, and writes the same part of each peer's values to y. Bound: bandwidth of the link, for few rows its latency.
// Precondition: every rank launches the same grid.
#include "gpu/ranks/exchange.h"

namespace lb::gpu {

LB_KERNEL(all_gather_kernel, AllGather, kRowThreads, 1) {
  dependents_may_launch();
  wait_for_previous();
  Exchange exchange(p.ranks);
  const int rank = p.ranks.rank, n = p.ranks.n;
  const BlockSpan own(long(p.rows) * p.widths[rank]);
  for (int s = 1; s < n; ++s) {
    const int peer = (rank + s) % n;
    float* to = exchange.rows(peer, rank);
    for (long i = own.first + thread_id(); i < own.end; i += n_threads()) store(to + i, load<float>(p.x + i));
  }
  exchange.swap_rows();
  int total = 0;
  for (int sender = 0; sender < n; ++sender) total += p.widths[sender];
  for (int sender = 0, column = 0; sender < n; column += p.widths[sender++]) {
    const int width = p.widths[sender];
    const float* from = sender == rank ? p.x : exchange.rows(rank, sender);
    const BlockSpan span(long(p.rows) * width);
    for (long i = span.first + thread_id(); i < span.end; i += n_threads())
      store(p.y + i / width * total + column + i % width, load<float>(from + i));
  }
  exchange.finish();
}

}  // namespace lb::gpu
