// The sums of a block's products, finished by a warp of its own: those who multiply begin with the next step while what
// they made is on its way to others.
#pragma once

#include "mega_finish.h"
#include "transfer.h"

namespace lb::gpu {

// Passes on their way from the warps that multiply to the one that finishes.
struct SumStream {
  RowSums passes[2];  // of pass number n: n % 2
  CountedBarrier full[2], empty[2];
  uint32_t pass;                        // number of the next
  uint32_t is_over;                     // the block gives up
  alignas(16) unsigned char task[512];  // that the finishing warp is at

  LB_DEVICE static int parity(uint32_t n) { return int(n / 2 & 1); }

  // By one thread, before a barrier of the whole block.
  LB_DEVICE void init() {
    for (int i = 0; i < 2; ++i) {
      barrier_init(full + i, kMegaThreads);
      barrier_init(empty + i, 32);
    }
    pass = 0;
    is_over = 0;
  }
  // Until pass n - 2 is finished, whose place n takes.
  LB_DEVICE void wait_for_place(uint32_t n) { barrier_wait(empty + n % 2, parity(n) ^ 1); }
  // By every thread that multiplies, when its sums of pass n are there.
  LB_DEVICE void give(uint32_t n) { barrier_arrive(full + n % 2); }
  // Until all passes so far are finished.
  LB_DEVICE void wait_until_finished() {
    if (pass > 0) barrier_wait(empty + (pass - 1) % 2, parity(pass - 1));
  }
  // By all warps but the helping ones, between products.
  LB_DEVICE void stop() {
    wait_until_finished();  // nobody is looking at is_over
    if (thread_id() == 0) is_over = 1;
    give(pass);
  }
};

static_assert(sizeof(SumStream) <= kMegaPoolAt - kMegaSumsAt);
LB_DEVICE SumStream& mega_sums() {
  unsigned char* shared = dynamic_shared<unsigned char>();
  return *reinterpret_cast<SumStream*>(shared + kMegaSumsAt);
}

// By the finishing warp: the rows of a block's part in a product, pass after pass from number n on. False: it is over.
LB_DEVICE bool finish_product(const ProductTask& p, int part, uint32_t& n, const PhaseWait& wait) {
  SumStream& stream = mega_sums();
  const int begin = part * p.rows_each + min(part, p.more) * p.row_unit;
  const int n_rows = p.rows_each + (part < p.more ? p.row_unit : 0);
  float factor = 1;
  LB_UNROLL_BY(1)
  for (int pass = 0; pass < n_rows; pass += p.pass_rows) {
    const int rows = min(p.pass_rows, n_rows - pass);
    const auto ask = [&](int row) -> Word {  // for what is added: there two phases ago, as a rule
      if (row >= rows || p.add_words.at < 0) return 0;
      return load_relaxed(mega_state().words + p.add_words.at + begin + pass + row);
    };
    Word added = ask(lane());
    barrier_wait(stream.full + n % 2, SumStream::parity(n));
    if (shuffle(stream.is_over, 0) != 0) return false;
    const RowSums& sums = stream.passes[n % 2];
    if (pass == 0 && p.from == XFrom::kRms) factor = factor_of(p, sums.squares);
    LB_UNROLL_BY(1)  // the code of a warp that nobody else runs is what it waits for
    for (int row = lane(); row - lane() < rows; row += 32) {
      if (row != lane()) added = ask(row);
      if (row < rows) finish_row(p, sums.v + row, begin + pass + row, factor, added, wait);
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
  uint32_t n = 0;
  int n_arrived = 0;
  LB_UNROLL_BY(1)
  for (int token = 0; token < p.n_tokens; ++token) {
    const uint32_t number = words_number(p, token);
    LB_UNROLL_BY(1)
    for (int i = 0; i < p.n_steps; ++i) {
      const TaskStep step = load<TaskStep>(steps + i);
      const int n_phases = phases_behind(p, steps, token, i);
      if (makes_rows(step)) {
        warp_barrier();  // the task before is no longer read
        if (16 * lane() < int(sizeof(Task)))
          store(stream.task + 16 * lane(),
                load<u32x4>(reinterpret_cast<const unsigned char*>(p.tasks + step.task) + 16 * lane()));
        warp_barrier();
        const PhaseWait wait = {
            .number = number, .made_by = number + uint32_t(phase_of(step)) * uint32_t(n_blocks()), .is_barrier = false};
        if (!finish_product(reinterpret_cast<const Task*>(stream.task)->product, step.part, n, wait)) return;
        if (n_phases != 0 && lane() == 0) add_release(p.arrived, uint32_t(n_phases - n_arrived));
      }
      if (n_phases != 0) n_arrived = n_phases;
    }
  }
}

}  // namespace lb::gpu
