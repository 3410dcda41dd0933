// The barrier between phases, in two halves: a block arrives when its work is done, and waits when it needs what others
// made. One counter that only rises; who waits too long says so and goes on, so that the launch ends.
#pragma once

#include "weight_stream.h"

namespace lb::gpu {

// Where a block stands, in shared memory, as the tasks need the registers.
struct MegaState {
  const uint32_t* arrived;
  MegaReport* report;
  long patience_ns;
  uint32_t goal;  // of *arrived, at which the phase may begin
  uint32_t phase;
  uint32_t has_stopped;
  StepTimes* times;  // of this step, or null
};

// The thread of a block that watches the others.
LB_DEVICE bool is_watcher() { return thread_id() == n_threads() - 1; }

struct PhaseWait {
  MegaState* state;
  WeightStream* stream;

  LB_DEVICE static bool is_open(const MegaState& s) { return int32_t(load_acquire(s.arrived) - s.goal) >= 0; }

  // For a task that needs nothing of other blocks that the one before it has not waited for.
  LB_DEVICE void has_passed() const {
    if (is_watcher() && state->times != nullptr) state->times->waited = time_ns();
  }

  LB_DEVICE void operator()() const {
    if (is_watcher()) {
      MegaState& s = *state;
      if (!is_open(s)) {
        const uint64_t start = time_ns();
        while (!is_open(s)) {
          if (time_ns() - start < uint64_t(s.patience_ns)) continue;
          store_release_system(&s.report->stuck, s.phase + 1);
          s.has_stopped = 1;
          break;
        }
      }
      if (s.times != nullptr) s.times->waited = time_ns();
    }
    block_barrier();
  }
};

}  // namespace lb::gpu
