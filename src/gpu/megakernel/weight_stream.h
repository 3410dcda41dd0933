// The copying warp of a block: it streams the weights of all the block's products into a ring in shared memory, in the
// order of use. Weights depend on nothing, so the copies run ahead of the phases as far as the ring has room. The block
// thus reads device memory even while it waits for other blocks or computes. The block's other reads queue after the
// copies in flight, so if the ring is full, the next chunk is copied in parts, one after another.
//
// A chunk holds some weight rows of a product for each team of threads, plane after plane, contiguously. The host has
// planned each chunk's offset in the ring and the chunk that it overwrites (gpu/megakernel/schedule/weight_chunks.h),
// because the instructions per chunk limit the rate of the copies.
#pragma once

#include "gpu/megakernel/shape.h"
#include "transfer.h"

namespace lb::gpu {

// In shared memory. Chunk n uses slot n % kMegaChunks.
struct WeightStream {
  CountedBarrier full[kMegaChunks], empty[kMegaChunks];
  int offset[kMegaChunks];  // byte offset of the chunk in dynamic shared memory
  CountedBarrier paced;     // completes with a part of a chunk, for the copying warp
  uint32_t is_stopped;      // the block stops early

  // Called by one thread, before a barrier of the whole block.
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

  // The copying warp's loop over all weights of the launch. A lane handles one plane of every eighth chunk and loads
  // its StreamCopy eight chunks ahead. All lanes take part in each chunk's waits.
  LB_DEVICE void copy_all(const Mega& p) {
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
        for (int i = 0; i < min(count - first, kStreamChunks); ++i) {
          if (!copy_chunk(n, own, shared, i * quant::kMaxPlanes, n_paced)) return drain(n);
          ++n;
        }
      }
    }
  }

  // Called by the multiplying warps, between products, to end the copying warp too. The copying warp may be waiting for
  // one of the ring's chunks to become empty.
  LB_DEVICE void stop(uint32_t chunk) {
    if (lane() == 0) is_stopped = 1;
    LB_UNROLL_BY(1)
    for (uint32_t n = chunk; n < chunk + kMegaChunks; ++n) {
      if (n >= kMegaChunks)
        barrier_wait(empty_of(n), parity(n - kMegaChunks));  // the barrier's previous phase must be complete
      barrier_arrive(empty_of(n));
    }
  }

 private:
  // Copies a chunk, with kMaxPlanes lanes from `first` on. Returns false if the block stops.
  LB_DEVICE bool copy_chunk(uint32_t n, const StreamCopy& own, unsigned char* shared, int first, uint32_t& n_paced) {
    const uint32_t order = shuffle(own.order, first);
    const bool is_own = lane() >= first && lane() < first + quant::kMaxPlanes;
    bool comes_in_parts = false;
    if (n >= reuse_distance(order)) {
      const uint32_t before = n - reuse_distance(order);
      if (!any(barrier_has_passed(empty_of(before), parity(before)))) {
        if (any(is_stopped != 0)) return false;
        barrier_wait(empty_of(before), parity(before));
        comes_in_parts = true;
      }
      if (any(is_stopped != 0)) return false;  // it passed because of stop(): no thread will wait for this chunk
    }
    if (n >= max_in_flight(order)) barrier_wait(full_of(n - max_in_flight(order)), parity(n - max_in_flight(order)));
    if (lane() == first) offset[n % kMegaChunks] = offset_of(own);
    unsigned char* to = shared + offset_of(own);
    const uint8_t* from = own.from;
    int left = bytes_of(own);
    if (comes_in_parts) {
      const int part_bytes = part_bytes_of(own);
      LB_UNROLL_BY(1)
      for (int parts = n_parts(order); parts > 1; --parts) {
        const int bytes = min(part_bytes, left);
        if (is_own) copy_plane(&paced, to, from, bytes);
        barrier_wait(&paced, int(n_paced++ & 1));
        to += bytes;
        from += bytes;
        left -= bytes;
      }
    }
    if (is_own) copy_plane(full_of(n), to, from, left);
    return true;
  }
  // Copies one plane. Each of the chunk's lanes arrives, even with no bytes, so that no lane needs the others' byte
  // counts.
  LB_DEVICE static void copy_plane(CountedBarrier* barrier, unsigned char* to, const uint8_t* from, int bytes) {
    barrier_expect(barrier, bytes);
    if (bytes > 0) copy_bulk_evict_first(to, from, bytes, barrier);
  }
  // Waits for the copies in flight. After the block's end they would write to another block's shared memory.
  LB_DEVICE void drain(uint32_t n_begun) {
    const int n = int(n_begun);
    for (int i = max(n - kMaxInFlight, 0); i < n; ++i) barrier_wait(full_of(uint32_t(i)), parity(uint32_t(i)));
  }
};

static_assert(kMegaChunks == 32);  // one lane per chunk
static_assert(sizeof(WeightStream) <= kMegaPoolAt - kMegaStreamAt);
LB_DEVICE WeightStream& mega_stream() {
  unsigned char* shared = dynamic_shared<unsigned char>();
  return *reinterpret_cast<WeightStream*>(shared + kMegaStreamAt);
}

}  // namespace lb::gpu
