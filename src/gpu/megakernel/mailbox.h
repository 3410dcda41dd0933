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
struct Turn {
  uint32_t chunk, pass;
};

inline constexpr int kOfFinisher = 2;  // of MegaState::gave_up

// Where a block stands, in shared memory, as the tasks need the registers.
struct MegaState {
  uint32_t* arrived;
  Word* words;
  MegaReport* report;
  long timeout_ns;
  uint32_t max_polls;  // of a word, by a thread
  // Somebody in a step, by turns: behind a barrier of the step all threads read the same. kOfFinisher: who finishes
  // rows, for itself alone.
  uint32_t gave_up[3];
  Turn turns[2];              // of steps, by turns
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
LB_DEVICE uint32_t words_number(const Mega& p, int token) { return arrivals_before(p, token) + 1; }

LB_DEVICE float value_of_word(Word word) { return quant::float_of(uint32_t(word)); }
LB_DEVICE Word word_of(uint32_t bits, uint32_t made_by) { return Word(made_by) << 32 | bits; }
LB_DEVICE Word word_of(float value, uint32_t made_by) { return word_of(quant::bits_of(value), made_by); }

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
struct StepTurn {
  Turn now;
  const Task* next;
  int next_half;

  LB_DEVICE void prepare_next(const TaskStep& step) const {
    fetch_task(next, next_half);
    if (thread_id() == 0) mega_state().turns[next_half] = {now.chunk + step.n_chunks, now.pass + step.n_passes};
  }
};

struct PhaseWait {
  uint32_t number;   // of the words of this token's phase 0
  uint32_t made_by;  // of those that this phase makes: one more than the arrivals at which it may begin
  bool is_barrier;
  int half;  // of MegaState::gave_up

  LB_DEVICE bool is_open(const MegaState& s) const { return int32_t(load_acquire(s.arrived) - (made_by - 1)) >= 0; }

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
          give_up();
          break;
        }
      }
      stamp(&StepTimes::waited);
    }
    block_barrier();
  }

  // For tasks that read no words.
  LB_DEVICE void without_words() const {
    (*this)();
    if (!is_barrier) has_passed();
  }

  // The block stops behind this step, which works with what is there.
  LB_DEVICE void give_up() const { mega_state().gave_up[half] = 1; }
  LB_DEVICE bool has_given_up() const { return mega_state().gave_up[half] != 0; }
  LB_DEVICE uint32_t number_of(const WordsFrom& from) const {
    return number + uint32_t(from.phase) * uint32_t(n_blocks());
  }
  LB_DEVICE static const Word* place_of(const WordsFrom& from) { return mega_state().words + from.at; }
  LB_DEVICE void write(int at, float value) const { store_relaxed(mega_state().words + at, word_of(value, made_by)); }
};

template <int kN>
LB_DEVICE void ask_words(const Word* const (&from)[kN], Word (&words)[kN]) {
  LB_UNROLL
  for (int k = 0; k < kN; ++k) words[k] = load_relaxed(from[k]);
}

// kN words, each of its own number, that have been asked for once.
template <int kN>
LB_DEVICE void take_words(const PhaseWait& wait, const Word* const (&from)[kN], const uint32_t (&numbers)[kN],
                          Word (&words)[kN], float (&values)[kN]) {
  uint32_t polls = mega_state().max_polls;
  LB_UNROLL_BY(1)
  for (;;) {
    uint32_t differs = 0;
    LB_UNROLL
    for (int k = 0; k < kN; ++k) {
      differs |= uint32_t(words[k] >> 32) ^ numbers[k];
      values[k] = value_of_word(words[k]);
    }
    if (differs == 0) return;
    if (--polls == 0) return wait.give_up();
    ask_words(from, words);
  }
}

template <int kN>
LB_DEVICE void read_words(const PhaseWait& wait, const Word* const (&from)[kN], const uint32_t (&numbers)[kN],
                          float (&values)[kN]) {
  Word words[kN];
  ask_words(from, words);
  take_words(wait, from, numbers, words, values);
}

// Looks again and again, as often as a word may be looked at. look(): 0 where all is there.
template <class Look>
LB_DEVICE void look_until_there(const PhaseWait& wait, Look&& look) {
  uint32_t polls = mega_state().max_polls, differs;
  LB_UNROLL_BY(1)
  do {
    differs = look();
  } while (differs != 0 && --polls != 0);
  if (differs != 0) wait.give_up();
}

// Four values from each of kN places, multiples of 4, of words or plain; below 0: zeros.
template <int kN>
LB_DEVICE void read_fours(const PhaseWait& wait, const WordsFrom& of, const float* plain, const int (&at)[kN],
                          f32x4 (&values)[kN]) {
  if (of.at < 0) {
    LB_UNROLL
    for (int k = 0; k < kN; ++k) values[k] = at[k] >= 0 ? load<f32x4>(plain + at[k]) : f32x4{};
    return;
  }
  const uint32_t number = wait.number_of(of);
  const Word* from = PhaseWait::place_of(of);
  Word words[kN][4];
  look_until_there(wait, [&] {
    uint32_t differs = 0;
    LB_UNROLL
    for (int k = 0; k < kN; ++k) {
      LB_UNROLL
      for (int j = 0; j < 4; ++j) words[k][j] = Word(number) << 32;
      if (at[k] < 0) continue;
      load_relaxed(from + word_place(at[k]), words[k][0], words[k][1]);
      load_relaxed(from + word_place(at[k]) + kHalfGroup, words[k][2], words[k][3]);
    }
    LB_UNROLL
    for (int k = 0; k < kN; ++k) LB_UNROLL
    for (int j = 0; j < 4; ++j) differs |= uint32_t(words[k][j] >> 32) ^ number;
    return differs;
  });
  LB_UNROLL
  for (int k = 0; k < kN; ++k) LB_UNROLL
  for (int j = 0; j < 4; ++j) values[k][j] = value_of_word(words[k][j]);
}

}  // namespace lb::gpu
