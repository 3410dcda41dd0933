// AllReduce: y = add + (x_0 + x_1 + ...), in the order of the ranks. A thread sends its values to all peers before it
// waits for any. Short exchanges (words): two values per thread, each in a word with the exchange's tag. Long exchanges
// (rows): four values per store, one flag per thread block, in two steps from four ranks on. Bound: latency of the
// link; its bandwidth. Preconditions: every rank launches the same grid; count is a multiple of 4 and rows are 16-byte
// aligned.
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

namespace {

// From this number of ranks on, long exchanges take two steps, in which a rank sends 2 (n - 1) / n values per value
// instead of n - 1. Two ranks send the same bytes either way, three a third less, which is not worth a second latency.
constexpr int kTwoStepRanks = 4;

// Calls each(i) for the thread's values [i, i + 4) of a span.
template <class Each>
LB_DEVICE void for_each_four(const Span& span, Each&& each) {
  for (long i = span.first + 4L * thread_id(); i < span.end; i += 4L * n_threads()) each(i);
}

// Stores values of x to this rank's slot of a peer.
LB_DEVICE void send_rows(const Exchange& exchange, int peer, const float* x, const Span& span) {
  float* to = exchange.rows(peer, exchange.ranks.rank);
  for_each_four(span, [&](long i) { store(to + i, load<f32x4>(x + i)); });
}

// The sum of four values over the ranks.
LB_DEVICE f32x4 sum_of(const Exchange& exchange, const float* x, long i) {
  const int rank = exchange.ranks.rank, n = exchange.ranks.n;
  f32x4 sum = {};
  for (int sender = 0; sender < n; ++sender) {
    const f32x4 own = load<f32x4>((sender == rank ? x : exchange.rows(rank, sender)) + i);
    for (int k = 0; k < 4; ++k) sum[k] = sender == 0 ? own[k] : sum[k] + own[k];
  }
  return sum;
}

LB_DEVICE void store_result(const AllReduce& p, long i, f32x4 sum) {
  if (p.add != nullptr) {
    const f32x4 add = load<f32x4>(p.add + i);
    for (int k = 0; k < 4; ++k) sum[k] = add[k] + sum[k];
  }
  store(p.y + i, sum);
}

}  // namespace

LB_KERNEL(all_reduce_rows_kernel, AllReduce, kRowThreads, 1) {
  dependents_may_launch();
  wait_for_previous();
  Exchange exchange(p.ranks);
  const int rank = p.ranks.rank, n = p.ranks.n;
  if (n < kTwoStepRanks) {
    const BlockSpan span(p.count);
    for (int s = 1; s < n; ++s) send_rows(exchange, (rank + s) % n, p.x, span);
    exchange.swap_rows();
    for_each_four(span, [&](long i) { store_result(p, i, sum_of(exchange, p.x, i)); });
  } else {
    // Rank r owns part r of the values: it gets that part of all ranks, adds them, and sends the sums to all. A slot
    // holds the parts of a first step and of a second one side by side.
    for (int s = 1; s < n; ++s) {
      const int owner = (rank + s) % n;
      send_rows(exchange, owner, p.x, BlockSpan(Span(p.count, owner, n)));
    }
    exchange.swap_rows();
    const BlockSpan own(Span(p.count, rank, n));
    for_each_four(own, [&](long i) {
      const f32x4 sum = sum_of(exchange, p.x, i);
      for (int s = 1; s < n; ++s) store(exchange.rows((rank + s) % n, rank) + i, sum);
      store_result(p, i, sum);
    });
    exchange.swap_rows(true);
    for (int owner = 0; owner < n; ++owner) {
      if (owner == rank) continue;
      const BlockSpan span(Span(p.count, owner, n));
      for_each_four(span, [&](long i) { store_result(p, i, load<f32x4>(exchange.rows(rank, owner) + i)); });
    }
  }
  exchange.finish();
}

}  // namespace lb::gpu
