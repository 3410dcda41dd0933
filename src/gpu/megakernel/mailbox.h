// How a block waits for other blocks: mailboxes and the grid barrier.
//
// A block mostly spins on mailboxes: a writer stores and continues, and a reader loads the value anyway and checks its
// tag. Plain values need a grid barrier, split in two: a block arrives when its work is done, and waits when it needs
// other blocks' values. The barrier is one counter that only rises. All blocks must be co-resident. A wait that times
// out is reported and ends the launch.
#pragma once

#include "gpu/megakernel/shape.h"

namespace lb::gpu {

#ifdef LUCEBOX_TIMELINE  // set by a build option of the pack
inline constexpr bool kHasTimeline = true;
#else
inline constexpr bool kHasTimeline = false;
#endif

inline constexpr int kMinPollNs = 512;  // about the time of one mailbox load

// Weight chunks and passes of sums before a step, counted from the start of the launch.
struct StreamCursor {
  uint32_t chunk, pass;
};

inline constexpr int kEpilogueWarp = 2;  // the epilogue warp's index in MegaState::timed_out

// The state of a block, in shared memory because tasks need the registers. Steps alternate between the two halves of
// its double buffers.
struct MegaState {
  uint32_t* arrived;
  Mailbox* mailboxes;
  MegaReport* report;
  const MegaRanks* ranks;
  long timeout_ns;
  uint32_t max_polls;  // max polls of a mailbox by one thread before it times out
  // [0], [1]: set when a thread times out in a step of that half; after a barrier of the step, all threads read the
  // same value. [kEpilogueWarp]: set and read only by the epilogue warp.
  uint32_t timed_out[3];
  StreamCursor cursors[2];    // the cursor at the step of each half
  StepTimes* volatile times;  // where to record this step, or null; volatile, because only the watcher may read it
  TokenNumbers numbers;       // the token's numbers, valid from its second step on
};

static_assert(sizeof(MegaState) <= kMegaStreamAt - kMegaStateAt);
LB_DEVICE MegaState& mega_state() {
  unsigned char* shared = dynamic_shared<unsigned char>();
  return *reinterpret_cast<MegaState*>(shared + kMegaStateAt);
}

// Whether this is the thread that waits at the grid barrier for its block.
LB_DEVICE bool is_watcher() { return thread_id() == n_threads() - 1; }

// Records the time of a moment of this step. Called by the watcher.
LB_DEVICE void stamp(uint64_t StepTimes::* moment) {
  if constexpr (kHasTimeline) {
    if (StepTimes* times = mega_state().times) times->*moment = time_ns();
  }
}

// Arrivals of all blocks before a token. opaque(): each step recomputes it, because tasks need the registers.
LB_DEVICE uint32_t arrivals_before(const Mega& p, int token) {
  return p.first + uint32_t(token * opaque(p.n_phases)) * uint32_t(opaque(n_blocks()));
}
// The tag of a token's phase 0: arrivals before it plus 1, so that no tag is 0.
LB_DEVICE uint32_t first_tag(const Mega& p, int token) { return arrivals_before(p, token) + 1; }

LB_DEVICE float value_in(Mailbox box) { return quant::float_of(uint32_t(box)); }
LB_DEVICE Mailbox mailbox_of(uint32_t bits, uint32_t tag) { return Mailbox(tag) << 32 | bits; }
LB_DEVICE Mailbox mailbox_of(float value, uint32_t tag) { return mailbox_of(quant::bits_of(value), tag); }

// The task in this half of the double buffers.
LB_DEVICE const Task& task_in(int half) {
  const unsigned char* shared = dynamic_shared<unsigned char>();
  return *reinterpret_cast<const Task*>(shared + half * 512);
}

// Copies a task to its half of shared memory. It is visible after copy_wait and a barrier of the block.
LB_DEVICE void fetch_task(const Task* from, int half) {
  const int offset = opaque(4 * thread_id());  // recomputed in each step
  if (offset < int(sizeof(Task)))
    copy_async<4>(dynamic_shared<unsigned char>() + half * 512 + offset,
                  reinterpret_cast<const unsigned char*>(from) + offset);
  copy_commit();
}

// Where a token's last task stores the next token's numbers. Null: no task reads them.
struct NumberSource {
  const int32_t *n_past, *key_buffer, *n_accepted, *accepted;

  LB_DEVICE explicit NumberSource(const NextToken& next)
      : n_past(next.n_past), key_buffer(next.key_buffer), n_accepted(next.n_accepted), accepted(next.accepted) {}
};

// Copies the numbers asynchronously, as fetch_task does.
LB_DEVICE void fetch_numbers(const NumberSource& from) {
  TokenNumbers& to = mega_state().numbers;
  if (thread_id() == 0 && from.n_past != nullptr) {
    copy_async<4>(&to.n_past, from.n_past);
    copy_async<4>(&to.key_buffer, from.key_buffer);
    copy_async<4>(&to.n_accepted, from.n_accepted);
    copy_async<4>(&to.first_accepted, from.accepted);
  }
  copy_commit();
}

// A step's position in the streams, and the next step. Call prepare_next() only when no thread of the block reads the
// other half any more.
struct StepContext {
  StreamCursor now;
  const Task* next;
  int next_half;

  LB_DEVICE void prepare_next(const TaskStep& step) const {
    fetch_task(next, next_half);
    if (thread_id() == 0) mega_state().cursors[next_half] = {now.chunk + step.n_chunks, now.pass + step.n_passes};
  }
};

// Waits of a step. Calling it waits at the grid barrier if the step needs one, else returns immediately.
struct PhaseWait {
  uint32_t base_tag;  // tag of this token's phase 0
  uint32_t tag;       // tag of this phase's writes: 1 + the arrivals at which the phase is open
  bool is_barrier;    // the step reads plain values of other blocks
  int half;           // index in MegaState::timed_out, or kEpilogueWarp

  LB_DEVICE bool is_open(const MegaState& s) const { return int32_t(load_acquire(s.arrived) - (tag - 1)) >= 0; }

  // For the timeline: the step's inputs have arrived.
  LB_DEVICE void mark_ready() const {
    if (is_watcher()) stamp(&StepTimes::waited);
  }

  LB_DEVICE void operator()() const {
    if (!is_barrier) return;
    if (is_watcher()) {
      MegaState& s = mega_state();
      if (!is_open(s)) {
        const uint64_t start = time_ns();
        while (!is_open(s)) {
          if (time_ns() - start < uint64_t(s.timeout_ns)) continue;
          time_out();
          break;
        }
      }
      stamp(&StepTimes::waited);
    }
    block_barrier();
  }

  // The wait of tasks that read no mailboxes.
  LB_DEVICE void without_mailboxes() const {
    (*this)();
    if (!is_barrier) mark_ready();
  }

  // Marks a time-out. The step continues with wrong values; then the block stops.
  LB_DEVICE void time_out() const { mega_state().timed_out[half] = 1; }
  LB_DEVICE bool has_timed_out() const { return mega_state().timed_out[half] != 0; }
  LB_DEVICE uint32_t tag_of(const MailboxSource& from) const {
    return base_tag + uint32_t(from.phase) * uint32_t(n_blocks());
  }
  LB_DEVICE static const Mailbox* mailboxes_of(const MailboxSource& from) { return mega_state().mailboxes + from.at; }
  LB_DEVICE void write(int at, float value) const {
    store_relaxed(mega_state().mailboxes + at, mailbox_of(value, tag));
  }
};

template <int kN>
LB_DEVICE void load_mailboxes(const Mailbox* const (&from)[kN], Mailbox (&boxes)[kN]) {
  LB_UNROLL
  for (int k = 0; k < kN; ++k) boxes[k] = load_relaxed(from[k]);
}

// Spins until each of kN mailboxes has its tag. boxes: the result of a first load.
template <int kN>
LB_DEVICE void await_mailboxes(const PhaseWait& wait, const Mailbox* const (&from)[kN], const uint32_t (&tags)[kN],
                               Mailbox (&boxes)[kN], float (&values)[kN]) {
  uint32_t polls = mega_state().max_polls;
  LB_UNROLL_BY(1)
  for (;;) {
    uint32_t differs = 0;
    LB_UNROLL
    for (int k = 0; k < kN; ++k) {
      differs |= uint32_t(boxes[k] >> 32) ^ tags[k];
      values[k] = value_in(boxes[k]);
    }
    if (differs == 0) return;
    if (--polls == 0) return wait.time_out();
    load_mailboxes(from, boxes);
  }
}

template <int kN>
LB_DEVICE void read_mailboxes(const PhaseWait& wait, const Mailbox* const (&from)[kN], const uint32_t (&tags)[kN],
                              float (&values)[kN]) {
  Mailbox boxes[kN];
  load_mailboxes(from, boxes);
  await_mailboxes(wait, from, tags, boxes, values);
}

// Spins until look() returns 0, at most max_polls times.
template <class Look>
LB_DEVICE void poll_until_valid(const PhaseWait& wait, Look&& look) {
  uint32_t polls = mega_state().max_polls, differs;
  LB_UNROLL_BY(1)
  do {
    differs = look();
  } while (differs != 0 && --polls != 0);
  if (differs != 0) wait.time_out();
}

// Reads four values from each of kN indices (multiples of 4), from mailboxes or plain memory. A negative index gives
// zeros.
template <int kN>
LB_DEVICE void read_fours(const PhaseWait& wait, const MailboxSource& of, const float* plain, const int (&at)[kN],
                          f32x4 (&values)[kN]) {
  if (of.at < 0) {
    LB_UNROLL
    for (int k = 0; k < kN; ++k) values[k] = at[k] >= 0 ? load<f32x4>(plain + at[k]) : f32x4{};
    return;
  }
  const uint32_t tag = wait.tag_of(of);
  const Mailbox* from = PhaseWait::mailboxes_of(of);
  Mailbox boxes[kN][4];
  poll_until_valid(wait, [&] {
    uint32_t differs = 0;
    LB_UNROLL
    for (int k = 0; k < kN; ++k) {
      LB_UNROLL
      for (int j = 0; j < 4; ++j) boxes[k][j] = Mailbox(tag) << 32;
      if (at[k] < 0) continue;
      load_relaxed(from + mailbox_index(at[k]), boxes[k][0], boxes[k][1]);
      load_relaxed(from + mailbox_index(at[k]) + kHalfGroup, boxes[k][2], boxes[k][3]);
    }
    LB_UNROLL
    for (int k = 0; k < kN; ++k) LB_UNROLL
    for (int j = 0; j < 4; ++j) differs |= uint32_t(boxes[k][j] >> 32) ^ tag;
    return differs;
  });
  LB_UNROLL
  for (int k = 0; k < kN; ++k) LB_UNROLL
  for (int j = 0; j < 4; ++j) values[k][j] = value_in(boxes[k][j]);
}

}  // namespace lb::gpu
