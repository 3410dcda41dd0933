// AllReduce: y = add + (x_0 + x_1 + ...), in the order of the ranks. A thread sends its values to all peers before it
// waits for any. Short exchanges (words): two values per thread, each in a word with the exchange's tag. Long exchanges
// (rows): four values per store, one flag per thread block. Bound: latency of the link; its bandwidth.
// Preconditions: every rank launches the same grid; count is a multiple of 4 and rows are 16-byte aligned.
#include "gpu/ranks/exchange.h"

namespace lb::gpu {

LB_KERNEL(all_reduce_words_kernel, AllReduce, kWordThreads, 1) {
  dependents_may_launch();
  wait_for_previous();
  Exchange exchange(p.ranks);
  const int rank = p.ranks.rank, n = p.ranks.n;
  const long i = 2 * (long(block_id()) * n_threads() + thread_id());
  if (i < p.count) {
    const f32x2 own = load<f32x2>(p.x + i);
    for (int step = 1; step < n; ++step) {
      const int peer = (rank + step) % n;
      store_relaxed_system(exchange.words(peer, rank) + i, exchange.word_of(own[0]), exchange.word_of(own[1]));
    }
    f32x2 sum = {};
    for (int sender = 0; sender < n; ++sender) {
      const f32x2 x = sender == rank ? own : exchange.receive(sender, i);
      for (int k = 0; k < 2; ++k) sum[k] = sender == 0 ? x[k] : sum[k] + x[k];
    }
    if (p.add != nullptr) {
      const f32x2 add = load<f32x2>(p.add + i);
      for (int k = 0; k < 2; ++k) sum[k] = add[k] + sum[k];
    }
    store(p.y + i, sum);
  }
  exchange.finish();
}

LB_KERNEL(all_reduce_rows_kernel, AllReduce, kRowThreads, 1) {
  dependents_may_launch();
  wait_for_previous();
  Exchange exchange(p.ranks);
  const int rank = p.ranks.rank, n = p.ranks.n;
  const BlockSpan span(p.count);
  const long first = span.first + 4L * thread_id(), step = 4L * n_threads();
  for (int s = 1; s < n; ++s) {
    const int peer = (rank + s) % n;
    float* to = exchange.rows(peer, rank);
    for (long i = first; i < span.end; i += step) store(to + i, load<f32x4>(p.x + i));
  }
  exchange.swap_rows();
  for (long i = first; i < span.end; i += step) {
    f32x4 sum = {};
    for (int sender = 0; sender < n; ++sender) {
      const f32x4 x = load<f32x4>((sender == rank ? p.x : exchange.rows(rank, sender)) + i);
      for (int k = 0; k < 4; ++k) sum[k] = sender == 0 ? x[k] : sum[k] + x[k];
    }
    if (p.add != nullptr) {
      const f32x4 add = load<f32x4>(p.add + i);
      for (int k = 0; k < 4; ++k) sum[k] = add[k] + sum[k];
    }
    store(p.y + i, sum);
  }
  exchange.finish();
}

}  // namespace lb::gpu
