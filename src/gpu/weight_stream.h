// The weights of a block's products, brought into shared memory by a warp of its own in the order they are met. Weights
// depend on nothing, so the copies run ahead of the phases, as far as the ring has room: device memory is read while
// the block waits for others or works on something else. What it waits for comes behind what is on its way: so where
// the ring is full, the next weights come in parts, one after another.
//
// A chunk is some rows of a product's weights for each team of threads, plane behind plane; chunks follow each other
// in a ring of bytes, at whose end one that does not fit is at the start instead, so that a chunk is in one piece.
#pragma once

#include "launch/megakernel_shape.h"
#include "transfer.h"

namespace lb::gpu {

// What a lane of the helping warp has of a product's part: of a plane, and the chunks' sizes. As they lie in memory,
// and asked for a product ahead: they are there when they are taken apart.
struct StreamFields {
  const uint8_t* from;
  uint16_t at, next_at, size, last, last_size, last_copied, n_chunks, part_units;
  uint8_t under_way, skew;

  LB_DEVICE void read(const StreamStep& step, int plane) {
    from = step.planes[plane];
    at = step.at[plane];
    next_at = step.at[plane + 1];
    size = step.at[quant::kMaxPlanes];
    last = step.last[plane];
    last_size = step.last_size;
    last_copied = step.last_copied;
    n_chunks = step.n_chunks;
    part_units = step.part_units;
    under_way = step.under_way;
    skew = step.skew[plane];
  }
};

// In shared memory.
struct WeightStream {
  CountedBarrier full[kMegaChunks], empty[kMegaChunks];  // of chunk number n: n % kMegaChunks
  int place[kMegaChunks];                                // likewise: where it is, in dynamic shared memory
  CountedBarrier paced;                                  // of a part of a chunk, for who brings it
  int ring_at, ring_bytes;                               // in dynamic shared memory
  uint32_t is_over;                                      // the block gives up

  // By one thread, before a barrier of the whole block.
  LB_DEVICE void init(const Mega& p) {
    ring_at = p.memory.ring_at;
    ring_bytes = p.memory.ring_bytes;
    for (int i = 0; i < kMegaChunks; ++i) {
      barrier_init(full + i, 1);
      barrier_init(empty + i, kMegaThreads);
    }
    barrier_init(&paced, 1);
    show_to_products();
    is_over = 0;
  }

  LB_DEVICE CountedBarrier* full_of(uint32_t n) { return full + n % kMegaChunks; }
  LB_DEVICE CountedBarrier* empty_of(uint32_t n) { return empty + n % kMegaChunks; }
  LB_DEVICE static int parity(uint32_t n) { return int(n / kMegaChunks & 1); }

  // By the helping warp, from the first weights of the launch to the last. The time of a chunk's instructions bounds
  // the rate of the copies: what belongs to a product is in registers, and all lanes wait.
  LB_DEVICE void bring(const Mega& p) {
    const int units = ring_bytes / 16, count = p.stream_counts[block_id()], plane = min(lane(), quant::kMaxPlanes - 1);
    if (count == 0) return;
    const StreamStep* all = p.streams + long(block_id()) * p.n_streams;
    unsigned char* ring = dynamic_shared<unsigned char>() + ring_at;
    int to = 0, n_free = units;  // in units of 16 bytes
    int taken_by = 0;            // likewise, by chunk n in lane n % kMegaChunks
    uint32_t n_begun = 0, n_freed = 0, n_paced = 0;
    StreamFields next;
    next.read(all[0], plane);
    LB_UNROLL_BY(1)
    for (int left_steps = p.n_tokens * count, i = 0; left_steps > 0; --left_steps) {
      if (++i == count) i = 0;
      const bool has_plane = lane() < quant::kMaxPlanes;
      const int in_chunk = int(next.at), whole = has_plane ? int(next.next_at) - in_chunk : 0;
      const int last = has_plane ? int(next.last) : 0, step_bytes = 16 * (whole - next.skew / StreamStep::kMaySkew);
      const int size = int(next.size), last_size = int(next.last_size), last_copied = int(next.last_copied);
      const int part_units = int(next.part_units);
      const uint32_t most = next.under_way;
      const uint8_t* from = next.from;
      int left = int(next.n_chunks);
      next.read(all[i], plane);
      LB_UNROLL_BY(1)
      for (; left > 0; --left) {
        const int own_units = left == 1 ? last_size : size;
        const bool fits = to + own_units <= units;
        const int taken = own_units + (fits ? 0 : units - to);
        bool comes_in_parts = false;
        while (n_free < taken || n_begun - n_freed == kMegaChunks) {
          comes_in_parts = comes_in_parts || (part_units != 0 && !is_given_back(n_freed));
          barrier_wait(empty_of(n_freed), parity(n_freed));
          if (shuffle(is_over, 0) != 0) return see_off(n_begun);  // of one lane: another may look later
          n_free += shuffle(taken_by, int(n_freed % kMegaChunks));
          ++n_freed;
        }
        if (n_begun >= most) barrier_wait(full_of(n_begun - most), parity(n_begun - most));
        if (!fits) to = 0;
        if (lane() == 0) place[n_begun % kMegaChunks] = ring_at + 16 * to;
        if (lane() == int(n_begun % kMegaChunks)) taken_by = taken;
        const int n = left == 1 ? last : whole;
        unsigned char* own = ring + 16 * (to + in_chunk);
        CountedBarrier* barrier = full_of(n_begun);
        if (comes_in_parts) {
          send_in_parts((own_units + part_units - 1) / part_units, barrier, own, from, n, n_paced);
        } else {
          send(barrier, own, from, n, left == 1 ? last_copied : size);
        }
        from += step_bytes;
        to += own_units;
        n_free -= taken;
        ++n_begun;
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
  LB_DEVICE bool is_given_back(uint32_t chunk) {  // for all lanes, as one of them saw it
    return shuffle(barrier_has_passed(empty_of(chunk), parity(chunk)) ? 1 : 0, 0) != 0;
  }
  // By a warp: n units of a lane's plane, all_units of all planes.
  LB_DEVICE static void send(CountedBarrier* barrier, unsigned char* to, const uint8_t* from, int n, int all_units) {
    if (lane() == 0) barrier_expect(barrier, 16 * all_units);
    warp_barrier();
    if (n > 0) copy_bulk_once(to, from, 16 * n, barrier);
  }
  // The same in parts, each when the one before is there. The last alone is told of: who sends it has seen the others.
  LB_DEVICE void send_in_parts(int parts, CountedBarrier* barrier, unsigned char* to, const uint8_t* from, int n,
                               uint32_t& n_paced) {
    int done = 0;
    LB_UNROLL_BY(1)
    for (int part = 1; part <= parts; ++part) {
      const int units = n * part / parts - done;
      send(part < parts ? &paced : barrier, to + 16 * done, from + 16 * done, units, warp_sum(units));
      if (part < parts) barrier_wait(&paced, int(n_paced++ & 1));
      done += units;
    }
  }
  // What is on its way when a block ends would hit the shared memory of the next one.
  LB_DEVICE void see_off(uint32_t n_begun) {
    const int n = int(n_begun);
    for (int i = max(n - kMostUnderWay, 0); i < n; ++i) barrier_wait(full_of(uint32_t(i)), parity(uint32_t(i)));
  }
};

static_assert(kMegaChunks == 32);  // a lane for each
static_assert(sizeof(WeightStream) <= kMegaPoolAt - kMegaStreamAt);
LB_DEVICE WeightStream& mega_stream() {
  unsigned char* shared = dynamic_shared<unsigned char>();
  return *reinterpret_cast<WeightStream*>(shared + kMegaStreamAt);
}

}  // namespace lb::gpu
