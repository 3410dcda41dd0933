// The weights of a block's products, brought into shared memory by a warp of its own in the order they are met. Weights
// depend on nothing, so the copies run ahead of the phases, as far as the ring has room: device memory is read while
// the block waits for others or works on something else.
//
// A chunk is some rows of a product's weights for each team of threads, plane behind plane; chunks follow each other
// in a ring of bytes, at whose end one that does not fit is at the start instead, so that a chunk is in one piece.
#pragma once

#include "launch/megakernel_shape.h"
#include "transfer.h"

namespace lb::gpu {

// In shared memory.
struct WeightStream {
  CountedBarrier full[kMegaChunks], empty[kMegaChunks];  // of chunk number n: n % kMegaChunks
  int place[kMegaChunks];                                // likewise: where it is, in dynamic shared memory
  int steps_at, n_steps;                                 // in dynamic shared memory
  int ring_at, ring_bytes;                               // in dynamic shared memory
  uint32_t is_over;                                      // the block gives up

  // By one thread, before a barrier of the whole block.
  LB_DEVICE void init(const Mega& p) {
    steps_at = p.memory.streams_at;
    n_steps = p.stream_counts[block_id()];
    ring_at = p.memory.ring_at;
    ring_bytes = p.memory.ring_bytes;
    for (int i = 0; i < kMegaChunks; ++i) {
      barrier_init(full + i, 1);
      barrier_init(empty + i, kMegaThreads);
    }
    show_to_products();
    is_over = 0;
  }

  LB_DEVICE const StreamStep* steps() const {
    const unsigned char* shared = dynamic_shared<unsigned char>();
    return reinterpret_cast<const StreamStep*>(shared + steps_at);
  }
  LB_DEVICE CountedBarrier* full_of(uint32_t n) { return full + n % kMegaChunks; }
  LB_DEVICE CountedBarrier* empty_of(uint32_t n) { return empty + n % kMegaChunks; }
  LB_DEVICE static int parity(uint32_t n) { return int(n / kMegaChunks & 1); }

  // By the helping warp, from the first weights of the launch to the last. The time of a chunk's instructions bounds
  // the rate of the copies: what belongs to a product is in registers, and all lanes wait.
  LB_DEVICE void bring(int n_tokens) {
    const int units = ring_bytes / 16, count = n_steps, plane = min(lane(), quant::kMaxPlanes - 1);
    const StreamStep* all = steps();
    unsigned char* ring = dynamic_shared<unsigned char>() + ring_at;
    int to = 0, n_free = units;  // in units of 16 bytes
    uint32_t n_begun = 0, n_freed = 0;
    int old = 0, old_left = 0, old_size = 0, old_last = 0, old_at = 0;  // the product whose chunks are being freed
    for (int token = 0; token < n_tokens; ++token) {
      for (int i = 0; i < count; ++i) {
        const StreamStep& now = all[i];
        const int size = int(now.at[quant::kMaxPlanes]), last_size = int(now.last_size), in_chunk = int(now.at[plane]);
        const int whole = lane() < quant::kMaxPlanes ? int(now.at[plane + 1]) - in_chunk : 0;
        const int last = lane() < quant::kMaxPlanes ? int(now.last[plane]) : 0, last_copied = int(now.last_copied);
        const int step_bytes = 16 * (whole - (now.skew[plane] / StreamStep::kMaySkew));
        const uint8_t* from = now.planes[plane];
        const uint32_t most = now.under_way;
        LB_UNROLL_BY(1)
        for (int left = int(now.n_chunks); left > 0; --left) {
          const bool is_last = left == 1;
          const int own = is_last ? last_size : size;
          const bool fits = to + own <= units;
          const int taken = own + (fits ? 0 : units - to);
          while (n_free < taken || n_begun - n_freed == kMegaChunks) {
            if (old_left == 0) {
              old_left = int(all[old].n_chunks);
              old_size = int(all[old].at[quant::kMaxPlanes]);
              old_last = int(all[old].last_size);
              if (++old == count) old = 0;
            }
            barrier_wait(empty_of(n_freed), parity(n_freed));
            if (shuffle(is_over, 0) != 0) return see_off(n_begun);  // of one lane: another may look later
            const int freed = --old_left == 0 ? old_last : old_size;
            if (old_at + freed > units) {
              n_free += units - old_at;
              old_at = 0;
            }
            n_free += freed;
            old_at += freed;
            ++n_freed;
          }
          if (n_begun >= most) barrier_wait(full_of(n_begun - most), parity(n_begun - most));
          CountedBarrier* barrier = full_of(n_begun);
          if (!fits) to = 0;
          if (lane() == 0) {
            place[n_begun % kMegaChunks] = ring_at + 16 * to;
            barrier_expect(barrier, 16 * (is_last ? last_copied : size));
          }
          warp_barrier();
          const int n = is_last ? last : whole;
          if (n > 0) copy_bulk_once(ring + 16 * (to + in_chunk), from, 16 * n, barrier);
          from += step_bytes;
          to += own;
          n_free -= taken;
          ++n_begun;
        }
      }
    }
  }

  // By all other warps, between products: the helping one shall end too. The next chunk is given back for it, which it
  // waits for at last; any other would be given back twice.
  LB_DEVICE void stop(uint32_t chunk) {
    if (lane() == 0) is_over = 1;
    barrier_arrive(empty_of(chunk));
  }

 private:
  // What is on its way when a block ends would hit the shared memory of the next one.
  LB_DEVICE void see_off(uint32_t n_begun) {
    const int n = int(n_begun);
    for (int i = max(n - kMostUnderWay, 0); i < n; ++i) barrier_wait(full_of(uint32_t(i)), parity(uint32_t(i)));
  }
};

static_assert(sizeof(WeightStream) <= kMegaPoolAt - kMegaStreamAt);
LB_DEVICE WeightStream& mega_stream() {
  unsigned char* shared = dynamic_shared<unsigned char>();
  return *reinterpret_cast<WeightStream*>(shared + kMegaStreamAt);
}

}  // namespace lb::gpu
