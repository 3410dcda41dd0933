// How a block waits for what others made. Mostly for the values themselves: words that carry their phase's number,
// which are fire and forget for who makes them and read in any case by who needs them. Where values are plain, at a
// barrier in two halves: a block arrives when its work is done, and waits when it needs what others made. One counter
// that only rises. Who waits too long says so and goes on, so that the launch ends.
#pragma once

#include "gpu/megakernel/shape.h"

namespace lb::gpu {

#ifdef LUCEBOX_TIMELINE  // a build option of the pack
inline constexpr bool kTakesTimes = true;
#else
inline constexpr bool kTakesTimes = false;
#endif

inline constexpr int kMinPollNs = 512;  // about what a look at a word takes

// The next chunk of streamed weights and the next pass of sums, as of a step's begin.
struct StreamCursor {
  uint32_t chunk, pass;
};

inline constexpr int kFinisher = 2;  // of MegaState::timed_out

// Where a block stands, in shared memory, as the tasks need the registers.
struct MegaState {
  uint32_t* arrived;
  Mailbox* mailboxes;
  MegaReport* report;
  long timeout_ns;
  uint32_t max_polls;  // of a word, by a thread
  // Somebody in a step, by turns: behind a barrier of the step all threads read the same. kFinisher: who finishes
  // rows, for itself alone.
  uint32_t timed_out[3];
  StreamCursor turns[2];      // of steps, by turns
  StepTimes* volatile times;  // of this step, or null; for the watcher alone, so no other may read it ahead of time
  TokenNumbers numbers;       // of the token, from its second step on
};

static_assert(sizeof(MegaState) <= kMegaStreamAt - kMegaStateAt);
LB_DEVICE MegaState& mega_state() {
  unsigned char* shared = dynamic_shared<unsigned char>();
  return *reinterpret_cast<MegaState*>(shared + kMegaStateAt);
}

// The thread of a block that watches the others.
LB_DEVICE bool is_watcher() { return thread_id() == n_threads() - 1; }

// What this step has come to, by the watcher.
LB_DEVICE void stamp(uint64_t StepTimes::* moment) {
  if constexpr (kTakesTimes) {
    if (StepTimes* times = mega_state().times) times->*moment = time_ns();
  }
}

// forget: what it is made of takes registers that tasks need, if kept from step to step.
LB_DEVICE uint32_t arrivals_before(const Mega& p, int token) {
  return p.first + uint32_t(token * opaque(p.n_phases)) * uint32_t(opaque(n_blocks()));
}
// Of the words of a token's phase 0: one more than the blocks' arrivals before it, so that none is 0.
LB_DEVICE uint32_t first_tag(const Mega& p, int token) { return arrivals_before(p, token) + 1; }

LB_DEVICE float value_in(Mailbox box) { return quant::float_of(uint32_t(box)); }
LB_DEVICE Mailbox mailbox_of(uint32_t bits, uint32_t tag) { return Mailbox(tag) << 32 | bits; }
LB_DEVICE Mailbox mailbox_of(float value, uint32_t tag) { return mailbox_of(quant::bits_of(value), tag); }

LB_DEVICE const Task& task_in(int half) {
  const unsigned char* shared = dynamic_shared<unsigned char>();
  return *reinterpret_cast<const Task*>(shared + half * 512);
}

// A task comes into its half of shared memory; there for who has waited for its copies, and for all behind a barrier.
LB_DEVICE void fetch_task(const Task* from, int half) {
  const int offset = opaque(4 * thread_id());  // likewise
  if (offset < int(sizeof(Task)))
    copy_async<4>(dynamic_shared<unsigned char>() + half * 512 + offset,
                  reinterpret_cast<const unsigned char*>(from) + offset);
  copy_commit();
}

// Where a token's last task leaves the numbers of the next one; null: no task asks.
struct NumbersFrom {
  const int32_t *n_past, *key_buffer, *n_accepted, *accepted;

  LB_DEVICE explicit NumbersFrom(const NextToken& next)
      : n_past(next.n_past), key_buffer(next.key_buffer), n_accepted(next.n_accepted), accepted(next.accepted) {}
};

// They come as a task does.
LB_DEVICE void fetch_numbers(const NumbersFrom& from) {
  TokenNumbers& to = mega_state().numbers;
  if (thread_id() == 0 && from.n_past != nullptr) {
    copy_async<4>(&to.n_past, from.n_past);
    copy_async<4>(&to.key_buffer, from.key_buffer);
    copy_async<4>(&to.n_accepted, from.n_accepted);
    copy_async<4>(&to.first_accepted, from.accepted);
  }
  copy_commit();
}

// Where a step begins in streams of chunks and passes, and what it does for the next one, once nobody is at the one
// before.
struct StepContext {
  StreamCursor now;
  const Task* next;
  int next_half;

  LB_DEVICE void prepare_next(const TaskStep& step) const {
    fetch_task(next, next_half);
    if (thread_id() == 0) mega_state().turns[next_half] = {now.chunk + step.n_chunks, now.pass + step.n_passes};
  }
};

struct PhaseWait {
  uint32_t base_tag;  // of the words of this token's phase 0
  uint32_t tag;       // of those that this phase makes: one more than the arrivals at which it may begin
  bool is_barrier;
  int half;  // of MegaState::timed_out

  LB_DEVICE bool is_open(const MegaState& s) const { return int32_t(load_acquire(s.arrived) - (tag - 1)) >= 0; }

  // What the task needs is there.
  LB_DEVICE void has_passed() const {
    if (is_watcher()) stamp(&StepTimes::waited);
  }

  // For what is plain. At any other phase it only begins.
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

  // For tasks that read no words.
  LB_DEVICE void without_mailboxes() const {
    (*this)();
    if (!is_barrier) has_passed();
  }

  // The block stops behind this step, which works with what is there.
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

// kN words, each of its own number, that have been asked for once.
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

// Looks again and again, as often as a word may be looked at. look(): 0 where all is there.
template <class Look>
LB_DEVICE void poll_until_valid(const PhaseWait& wait, Look&& look) {
  uint32_t polls = mega_state().max_polls, differs;
  LB_UNROLL_BY(1)
  do {
    differs = look();
  } while (differs != 0 && --polls != 0);
  if (differs != 0) wait.time_out();
}

// Four values from each of kN places, multiples of 4, of words or plain; below 0: zeros.
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
