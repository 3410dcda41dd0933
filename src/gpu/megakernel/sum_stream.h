// The epilogue warp of a block: it finishes the sums of products while the multiplying warps begin the next step.
#pragma once

#include "gpu/megakernel/argmax.h"
#include "gpu/megakernel/delta.h"
#include "gpu/megakernel/epilogue.h"
#include "transfer.h"

namespace lb::gpu {

// Passes handed from the multiplying warps to the epilogue warp, double-buffered: pass n is in slot n % 2.
struct SumStream {
  RowSums passes[2];
  CountedBarrier full[2], empty[2];
  uint32_t is_stopped;                  // the block stops early
  alignas(16) unsigned char task[512];  // the epilogue warp's current task
  alignas(16) unsigned char next[512];  // the block's next task, for prefetching

  LB_DEVICE static int parity(uint32_t n) { return int(n / 2 & 1); }

  // Called by one thread, before a barrier of the whole block.
  LB_DEVICE void init() {
    for (int i = 0; i < 2; ++i) {
      barrier_init(full + i, kMegaThreads);
      barrier_init(empty + i, 32);
      passes[i].zero = 0;
    }
    is_stopped = 0;
  }
  // Waits until pass n - 2, which uses the same slot, is finished.
  LB_DEVICE void wait_for_slot(uint32_t n) { barrier_wait(empty + n % 2, parity(n) ^ 1); }
  // Called by every multiplying thread once its sums of pass n are stored.
  LB_DEVICE void publish(uint32_t n) { barrier_arrive(full + n % 2); }
  // Waits until every thread has published all passes before n. Then none reads the product's x any more.
  LB_DEVICE void wait_until_published(uint32_t n) { barrier_wait(full + (n - 1) % 2, parity(n - 1)); }
  // Waits until all passes before n are finished.
  LB_DEVICE void wait_until_finished(uint32_t n) { barrier_wait(empty + (n - 1) % 2, parity(n - 1)); }
  // Called by the multiplying warps, between products.
  LB_DEVICE void stop(uint32_t n) {
    wait_until_finished(n);  // nobody reads is_stopped at this point
    if (thread_id() == 0) is_stopped = 1;
    publish(n);
  }
};

static_assert(sizeof(SumStream) <= kMegaPoolAt - kMegaSumsAt);
LB_DEVICE SumStream& mega_sums() {
  unsigned char* shared = dynamic_shared<unsigned char>();
  return *reinterpret_cast<SumStream*>(shared + kMegaSumsAt);
}

// Adds up the ranks' shares of the block's rows, all of which this rank has sent: waiting after each pass would take
// the link's latency twice.
LB_DEVICE void add_shares(const RowEpilogue& epilogue, const PhaseWait& wait) {
  constexpr int kAtOnce = 2;
  LB_UNROLL_BY(1)
  for (int first = 0; first < epilogue.n_rows; first += 32 * kAtOnce) {
    int rows[kAtOnce];
    Mailbox loaded[kAtOnce];
    RowDestination to[kAtOnce];
    LB_UNROLL
    for (int k = 0; k < kAtOnce; ++k) {
      const int row = first + 32 * k + lane();
      rows[k] = min(row, epilogue.n_rows - 1);
      loaded[k] = epilogue.load_added(rows[k]);
      to[k] = epilogue.destination_of(row, row < epilogue.n_rows);
    }
    float sums[kAtOnce];
    epilogue.await_sums(rows, wait, sums);
    LB_UNROLL
    for (int k = 0; k < kAtOnce; ++k) {
      const float added = epilogue.await_added(rows[k], loaded[k], wait, [&] { return wait.has_timed_out(); });
      epilogue.write(to[k], added + epilogue.plain_added(rows[k]) + sums[k]);
    }
  }
}

// Finishes the rows of a block's part of a product, pass by pass from pass number n on. Called by the epilogue warp.
// Returns false if the block stops. All other warps wait for this one, and no other warp hides its latencies. Few
// instructions therefore follow the sums. best: the largest key of the lane's rows, if has_best.
template <bool kIsGated>
LB_DEVICE bool finish_passes(const RowEpilogue& epilogue, uint32_t& n, const PhaseWait& wait, bool has_best,
                             uint64_t& best) {
  SumStream& stream = mega_sums();
  float factor = 1;
  LB_UNROLL_BY(1)
  for (int pass = 0; pass < epilogue.n_rows; pass += epilogue.pass_rows) {
    const int rows = min(epilogue.pass_rows, epilogue.n_rows - pass);
    const RowSums& sums = stream.passes[n % 2];
    LB_UNROLL_BY(1)
    for (int first = 0; first < rows; first += 32) {
      const int row = first + lane(), own = min(row, rows - 1);
      const bool is_added = !kIsGated && !epilogue.has_shares();  // else later, if at all
      const Mailbox loaded = is_added ? epilogue.load_added(pass + own) : 0;
      const RowSumsReader first_sum(epilogue, sums, 0, own), second_sum(epilogue, sums, 1, own);
      RowDestination to = epilogue.destination_of(pass + row, row < rows);
      to = {opaque(to.mailbox), opaque(to.plain)};
      CountedBarrier* full = stream.full + n % 2;
      const auto is_stopped_now = [&] {
        return barrier_has_passed(full, SumStream::parity(n)) && stream.is_stopped != 0;
      };
      const float added = !is_added ? 0.0f : epilogue.await_added(pass + own, loaded, wait, is_stopped_now);
      if (first == 0) barrier_wait(full, SumStream::parity(n));
      const uint32_t is_stopped = stream.is_stopped;
      const float sum = first_sum.total(), up = kIsGated ? second_sum.total() : 0.0f;
      if (pass == 0 && first == 0) factor = epilogue.factor(sums.squares);
      if (is_stopped != 0) return false;
      if constexpr (kIsGated) {
        epilogue.write_gated(to, sum, up, factor);
      } else if (epilogue.has_shares()) {
        if (row < rows) epilogue.send(pass + row, factor * sum);
      } else {
        const float y = added + epilogue.plain_added(pass + own) + factor * sum;
        epilogue.write(to, y);
        if (epilogue.has_logits_of_ranks() && row < rows) send_logit(epilogue.first_logit + pass + row, y);
        if (has_best && row < rows) best = larger(best, key_of(y, y, epilogue.begin + pass + row));
      }
    }
    barrier_arrive(stream.empty + n % 2);
    ++n;
  }
  if (!kIsGated && epilogue.has_shares()) add_shares(epilogue, wait);
  return true;
}

// The epilogue warp's loop, from the first product of the launch to the last.
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
      warp_barrier();  // no lane reads the previous task any more
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
                              .half = kEpilogueWarp};
      const ProductTask& product = reinterpret_cast<const Task*>(stream.task)->product;
      const RowEpilogue epilogue(product, step.part, wait);
      if (is_before_state(step)) prefetch_state(reinterpret_cast<const Task*>(stream.next)->delta, next.part);
      const SampleTask& sample = reinterpret_cast<const Task*>(stream.next)->sample;
      const bool has_best = is_before_adjust(step) && is_plain_choice(*sample.sample.op.options);
      uint64_t best = 0;
      const bool is_there = product.up != nullptr ? finish_passes<true>(epilogue, n, wait, false, best)
                                                  : finish_passes<false>(epilogue, n, wait, has_best, best);
      if (wait.has_timed_out() && lane() == 0)  // the other warps may still run, or have ended
        store_release_system(&mega_state().report->stuck, uint32_t(phase_of(step)) + 1);
      if (!is_there) return;
      if (has_best) {
        best = warp_largest(best);
        if (lane() == 0) send_best(sample, best, wait.tag);
      }
      if (step.arrives == 0) continue;
      if (epilogue.has_logits_of_ranks()) system_fence();
      warp_barrier();  // the lanes' writes precede the arrival
      if (lane() == 0) add_release(p.arrived, step.arrives);
    }
  }
}

}  // namespace lb::gpu
