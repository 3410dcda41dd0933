// The sums of a block's products, finished by a warp of its own: those who multiply begin with the next step while what
// they made is on its way to others.
#pragma once

#include "gpu/megakernel/argmax.h"
#include "gpu/megakernel/delta.h"
#include "gpu/megakernel/epilogue.h"
#include "transfer.h"

namespace lb::gpu {

// Passes on their way from the warps that multiply to the one that finishes.
struct SumStream {
  RowSums passes[2];  // of pass number n: n % 2
  CountedBarrier full[2], empty[2];
  uint32_t is_stopped;                  // the block gives up
  alignas(16) unsigned char task[512];  // that the finishing warp is at
  alignas(16) unsigned char next[512];  // for which it asks ahead

  LB_DEVICE static int parity(uint32_t n) { return int(n / 2 & 1); }

  // By one thread, before a barrier of the whole block.
  LB_DEVICE void init() {
    for (int i = 0; i < 2; ++i) {
      barrier_init(full + i, kMegaThreads);
      barrier_init(empty + i, 32);
      passes[i].zero = 0;
    }
    is_stopped = 0;
  }
  // Until pass n - 2 is finished, whose place n takes.
  LB_DEVICE void wait_for_slot(uint32_t n) { barrier_wait(empty + n % 2, parity(n) ^ 1); }
  // By every thread that multiplies, when its sums of pass n are there.
  LB_DEVICE void give(uint32_t n) { barrier_arrive(full + n % 2); }
  // Until every thread has given all passes before n: none reads what the product had of x any more.
  LB_DEVICE void wait_until_published(uint32_t n) { barrier_wait(full + (n - 1) % 2, parity(n - 1)); }
  // Until all passes before n are finished.
  LB_DEVICE void wait_until_finished(uint32_t n) { barrier_wait(empty + (n - 1) % 2, parity(n - 1)); }
  // By all warps but the helping ones, between products.
  LB_DEVICE void stop(uint32_t n) {
    wait_until_finished(n);  // nobody is looking at is_stopped
    if (thread_id() == 0) is_stopped = 1;
    give(n);
  }
};

static_assert(sizeof(SumStream) <= kMegaPoolAt - kMegaSumsAt);
LB_DEVICE SumStream& mega_sums() {
  unsigned char* shared = dynamic_shared<unsigned char>();
  return *reinterpret_cast<SumStream*>(shared + kMegaSumsAt);
}

// By the finishing warp: the rows of a block's part in a product, pass after pass from number n on. False: it is over.
// All wait for it, and it is alone, so that each instruction waits for the one before: behind the sums stand few.
// best: of the lane's rows the largest as a key, where somebody asks for it.
template <bool kIsGated>
LB_DEVICE bool finish_passes(const RowEpilogue& maker, uint32_t& n, const PhaseWait& wait, bool has_best,
                             uint64_t& best) {
  SumStream& stream = mega_sums();
  float factor = 1;
  LB_UNROLL_BY(1)
  for (int pass = 0; pass < maker.n_rows; pass += maker.pass_rows) {
    const int rows = min(maker.pass_rows, maker.n_rows - pass);
    const RowSums& sums = stream.passes[n % 2];
    LB_UNROLL_BY(1)
    for (int first = 0; first < rows; first += 32) {
      const int row = first + lane(), own = min(row, rows - 1);
      const Mailbox asked = kIsGated ? 0 : maker.ask(pass + own);
      const RowSumsReader of_first(maker, sums, 0, own), of_second(maker, sums, 1, own);
      RowDestination place = maker.place_of(pass + row, row < rows);
      place = {opaque(place.mailbox), opaque(place.plain)};
      CountedBarrier* full = stream.full + n % 2;
      const auto is_stopped_now = [&] {
        return barrier_has_passed(full, SumStream::parity(n)) && stream.is_stopped != 0;
      };
      const float added = kIsGated ? 0.0f : maker.take(pass + own, asked, wait, is_stopped_now);
      if (first == 0) barrier_wait(full, SumStream::parity(n));
      const uint32_t is_stopped = stream.is_stopped;
      const float sum = of_first.total(), up = kIsGated ? of_second.total() : 0.0f;
      if (pass == 0 && first == 0) factor = maker.factor(sums.squares);
      if (is_stopped != 0) return false;
      if constexpr (kIsGated) {
        maker.write_gated(place, sum, up, factor);
      } else {
        const float y = added + maker.plain(pass + own) + factor * sum;
        maker.write(place, y);
        if (has_best && row < rows) best = larger(best, key_of(y, y, maker.begin + pass + row));
      }
    }
    barrier_arrive(stream.empty + n % 2);
    ++n;
  }
  return true;
}

// By the finishing warp, from the first product of the launch to the last.
LB_DEVICE void finish_products(const Mega& p) {
  SumStream& stream = mega_sums();
  const unsigned char* shared = dynamic_shared<unsigned char>();
  const auto* steps = reinterpret_cast<const TaskStep*>(shared + p.memory.steps_at);
  const auto part_of = [](const Task* task) {
    return load<u32x4>(reinterpret_cast<const unsigned char*>(task) + 16 * lane());
  };
  uint32_t n = 0;
  LB_UNROLL_BY(1)
  for (int token = 0; token < p.n_tokens; ++token) {
    const uint32_t base_tag = first_tag(p, token);
    LB_UNROLL_BY(1)
    for (int i = 0; i < p.n_steps; ++i) {
      const TaskStep step = load<TaskStep>(steps + i);
      if (!makes_rows(step)) continue;
      warp_barrier();  // the task before is no longer read
      const TaskStep next = load<TaskStep>(steps + (i + 1 < p.n_steps ? i + 1 : 0));
      if (16 * lane() < int(sizeof(Task))) {
        const u32x4 own = part_of(p.tasks + step.task);
        if (is_before_state(step) || is_before_adjust(step))
          store(stream.next + 16 * lane(), part_of(p.tasks + next.task));
        store(stream.task + 16 * lane(), own);
      }
      warp_barrier();
      const PhaseWait wait = {.base_tag = base_tag,
                              .tag = base_tag + uint32_t(phase_of(step)) * uint32_t(n_blocks()),
                              .is_barrier = false,
                              .half = kFinisher};
      const ProductTask& product = reinterpret_cast<const Task*>(stream.task)->product;
      const RowEpilogue maker(product, step.part, wait);
      if (is_before_state(step)) prefetch_state(reinterpret_cast<const Task*>(stream.next)->delta, next.part);
      const SampleTask& sample = reinterpret_cast<const Task*>(stream.next)->sample;
      const bool has_best = is_before_adjust(step) && is_plain_choice(*sample.sample.op.options);
      uint64_t best = 0;
      const bool is_there = product.up != nullptr ? finish_passes<true>(maker, n, wait, false, best)
                                                  : finish_passes<false>(maker, n, wait, has_best, best);
      if (wait.has_timed_out() && lane() == 0)  // others go on, or are gone
        store_release_system(&mega_state().report->stuck, uint32_t(phase_of(step)) + 1);
      if (!is_there) return;
      if (has_best) {
        best = warp_largest(best);
        if (lane() == 0) send_best(sample, best, wait.tag);
      }
      if (step.arrives == 0) continue;
      warp_barrier();  // what the lanes have written comes before
      if (lane() == 0) add_release(p.arrived, step.arrives);
    }
  }
}

}  // namespace lb::gpu
