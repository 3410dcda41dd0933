// The weights of a block's products, brought into shared memory by a warp of its own in the order they are met. Weights
// depend on nothing, so the copies run ahead of the phases, as far as the ring has room: device memory is read while
// the block waits for others or works on something else. What it waits for comes behind what is on its way: so where
// the ring is full, the next weights come in parts, one after another.
//
// A chunk is some rows of a product's weights for each team of threads, plane behind plane, in one piece. Where each
// lies in the ring, and which one was there before, the host has written down
// (gpu/megakernel/schedule/weight_chunks.h): the time of a chunk's instructions bounds the rate of the copies.
#pragma once

#include "gpu/megakernel/shape.h"
#include "transfer.h"

namespace lb::gpu {

// In shared memory.
struct WeightStream {
  CountedBarrier full[kMegaChunks], empty[kMegaChunks];  // of chunk number n: n % kMegaChunks
  int place[kMegaChunks];                                // likewise: where it is, in dynamic shared memory
  CountedBarrier paced;                                  // of a part of a chunk, for who brings it
  uint32_t is_stopped;                                   // the block gives up

  // By one thread, before a barrier of the whole block.
  LB_DEVICE void init() {
    for (int i = 0; i < kMegaChunks; ++i) {
      barrier_init(full + i, quant::kMaxPlanes);
      barrier_init(empty + i, kMegaThreads);
    }
    barrier_init(&paced, quant::kMaxPlanes);
    fence_async_proxy();
    is_stopped = 0;
  }

  LB_DEVICE CountedBarrier* full_of(uint32_t n) { return full + n % kMegaChunks; }
  LB_DEVICE CountedBarrier* empty_of(uint32_t n) { return empty + n % kMegaChunks; }
  LB_DEVICE static int parity(uint32_t n) { return int(n / kMegaChunks & 1); }

  // By the helping warp, from the first weights of the launch to the last. A lane has a plane of every eighth chunk, as
  // it lies in memory, asked for eight chunks ahead; all wait for what a chunk waits for.
  LB_DEVICE void bring(const Mega& p) {
    const int count = p.stream_counts[block_id()];
    if (count == 0) return;
    const StreamCopy* all = p.streams + long(block_id()) * p.n_streams * quant::kMaxPlanes + lane();
    unsigned char* shared = dynamic_shared<unsigned char>();
    shared = opaque(shared);
    uint32_t n = 0, n_paced = 0;
    StreamCopy next = load<StreamCopy>(all);
    LB_UNROLL_BY(1)
    for (int left_tokens = p.n_tokens; left_tokens > 0; --left_tokens) {
      LB_UNROLL_BY(1)
      for (int first = 0; first < count; first += kStreamChunks) {
        const StreamCopy own = next;
        const int then = first + kStreamChunks;
        next = load<StreamCopy>(all + (then < count ? then * quant::kMaxPlanes : 0));
        LB_UNROLL_BY(1)
        for (int turn = 0; turn < min(count - first, kStreamChunks); ++turn) {
          if (!copy_chunk(n, own, shared, turn * quant::kMaxPlanes, n_paced)) return drain(n);
          ++n;
        }
      }
    }
  }

  // By all other warps, between products: the helping one shall end too. It waits for one of the chunks that lie in the
  // ring to be given back.
  LB_DEVICE void stop(uint32_t chunk) {
    if (lane() == 0) is_stopped = 1;
    LB_UNROLL_BY(1)
    for (uint32_t n = chunk; n < chunk + kMegaChunks; ++n) {
      if (n >= kMegaChunks)
        barrier_wait(empty_of(n), parity(n - kMegaChunks));  // who arrives has seen the phase before
      barrier_arrive(empty_of(n));
    }
  }

 private:
  // The copies of kMaxPlanes lanes, from `first` on. False: it is over.
  LB_DEVICE bool copy_chunk(uint32_t n, const StreamCopy& own, unsigned char* shared, int first, uint32_t& n_paced) {
    const uint32_t order = shuffle(own.order, first);
    const bool is_own = lane() >= first && lane() < first + quant::kMaxPlanes;
    bool comes_in_parts = false;
    if (n >= reuse_distance(order)) {
      const uint32_t before = n - reuse_distance(order);
      if (!any(barrier_has_passed(empty_of(before), parity(before)))) {
        if (any(is_stopped != 0)) return false;
        barrier_wait(empty_of(before), parity(before));
        if (any(is_stopped != 0)) return false;
        comes_in_parts = true;
      }
    }
    if (n >= max_in_flight(order)) barrier_wait(full_of(n - max_in_flight(order)), parity(n - max_in_flight(order)));
    if (lane() == first) place[n % kMegaChunks] = offset_of(own);
    unsigned char* to = shared + offset_of(own);
    const uint8_t* from = own.from;
    int left = bytes_of(own);
    if (comes_in_parts) {
      const int part_bytes = part_bytes_of(own);
      LB_UNROLL_BY(1)
      for (int parts = n_parts(order); parts > 1; --parts) {
        const int bytes = min(part_bytes, left);
        if (is_own) send(&paced, to, from, bytes);
        barrier_wait(&paced, int(n_paced++ & 1));
        to += bytes;
        from += bytes;
        left -= bytes;
      }
    }
    if (is_own) send(full_of(n), to, from, left);
    return true;
  }
  // Of one plane. All its lanes arrive, so that none has to know of the others' bytes.
  LB_DEVICE static void send(CountedBarrier* barrier, unsigned char* to, const uint8_t* from, int bytes) {
    barrier_expect(barrier, bytes);
    if (bytes > 0) copy_bulk_evict_first(to, from, bytes, barrier);
  }
  // What is on its way when a block ends would hit the shared memory of the next one.
  LB_DEVICE void drain(uint32_t n_begun) {
    const int n = int(n_begun);
    for (int i = max(n - kMaxInFlight, 0); i < n; ++i) barrier_wait(full_of(uint32_t(i)), parity(uint32_t(i)));
  }
};

static_assert(kMegaChunks == 32);  // a lane for each
static_assert(sizeof(WeightStream) <= kMegaPoolAt - kMegaStreamAt);
LB_DEVICE WeightStream& mega_stream() {
  unsigned char* shared = dynamic_shared<unsigned char>();
  return *reinterpret_cast<WeightStream*>(shared + kMegaStreamAt);
}

}  // namespace lb::gpu
