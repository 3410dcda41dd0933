// A decode step, or several, in one cooperative launch: the schedule of launch/megakernel_shape.h, interpreted. Every
// task is the body that the ordinary kernel of its op has.
//
// Each block goes through its own steps. What a task needs but does not depend on earlier phases (weights, norm
// weights, the recurrent state) is asked for first, then the block waits for the phase before. The next task is
// brought to shared memory while the current one works. Bound: bandwidth of the weights, and about a microsecond a
// phase. Notebook: docs/kernels/megakernel.md.
#pragma once

#include "attention_runs.h"
#include "embed_row.h"
#include "mega_delta.h"
#include "mega_stage.h"
#include "mega_wait.h"
#include "next_token.h"
#include "rope_angles.h"
#include "sample_token.h"

namespace lb::gpu {

// The sampler's first step, of the logits that the block has just made itself.
LB_APART void adjust_logits(const SampleTask& p, int part, unsigned char* pool) {
  assume_shared(&p);
  Work work = work_of(p.sample, reinterpret_cast<uint64_t*>(pool));
  work.begin = part * p.rows_each + min(part, p.more);
  work.end = min(work.begin + p.rows_each + (part < p.more ? 1 : 0), p.sample.op.vocab);
  adjust(work);
}

// For lane 0 to know: a read across the bus.
LB_DEVICE bool may_go_on(const SampleTask& p) {
  return lane() == 0 && p.leave.goes_on != nullptr &&
         int32_t(load_relaxed_system(p.leave.allowed) - *p.next.n_written) > 1;
}

// By a warp.
LB_DEVICE void end_token(const SampleTask& p, bool goes_on) {
  if (p.leave.goes_on != nullptr && lane() == 0) {
    *p.leave.goes_on = goes_on ? 1 : 0;
    if (!goes_on) *p.leave.ended = *p.next.n_written + 1;
  }
  next_token(p.next);
}

// Greedy, and nobody asks for probabilities: a warp sees to it. The token is on its way before it is written down.
LB_APART void choose_likeliest(const SampleTask& p, PhaseWait wait) {
  assume_shared(&p);
  const bool is_chooser = block_id() == 0 && warp() == 0, goes_on = is_chooser && may_go_on(p);  // the wait hides it
  wait();
  if (!is_chooser || mega_state().gave_up != 0) return;
  const Sample& op = p.sample.op;
  uint64_t best = 0;
  for (int i = lane(); i < n_blocks(); i += 32) best = larger(best, p.sample.grid->rows[int(SampleRow::kBest)][i]);
  best = warp_largest(best);
  const bool is_chosen = is_choosable(op, best, lane() == 0);
  if (is_chosen && lane() == 0) {
    op.result->token = id_of(best);
    op.result->problem = SampleProblem::kNone;
    op.result->n_top = 0;
  }
  warp_barrier();
  end_token(p, goes_on);
  if (is_chosen && lane() == 0) record(op, *op.options, id_of(best));
}

LB_APART_NESTED void choose_token(const SampleTask& p, unsigned char* pool, PhaseWait wait) {
  const SampleOptions& options = *p.sample.op.options;
  if (options.temperature == 0 && options.n_top < 0) return choose_likeliest(p, wait);
  wait();
  if (mega_state().gave_up != 0) return;
  Work work = work_of(p.sample, reinterpret_cast<uint64_t*>(pool));
  const bool is_chooser = choose(work);
  if (options.n_top > 0 && options.temperature > 0) grid_barrier(&p.sample.grid->barrier);  // block 0 has written those
  if (!is_chooser) return;
  block_barrier();
  if (warp() == 0) end_token(p, may_go_on(p));
}

LB_APART void embed(const Embed& p, int part, int n_parts, PhaseWait wait) {
  assume_shared(&p);
  wait();
  embed_row(p, 0, part * n_threads() + thread_id(), n_parts * n_threads());
}

LB_APART void make_table(const RopeTable& p, int part, int n_parts, PhaseWait wait) {
  assume_shared(&p);
  wait();
  rope_angles(p, part * n_threads() + thread_id(), n_parts * n_threads());
}

template <class Products, class Weights>
LB_DEVICE void run_task(const Task& task, const TaskStep& step, PhaseWait wait) {
  unsigned char* pool = dynamic_shared<unsigned char>() + kMegaPoolAt;
  const int part = step.part, n_parts = step.n_parts;
  switch (task.kind) {
    case TaskKind::kNothing:
      wait();
      if (!wait.is_barrier) wait.has_passed();
      break;
    case TaskKind::kEmbed: embed(task.embed, part, n_parts, wait); break;
    case TaskKind::kRopeTable: make_table(task.rope, part, n_parts, wait); break;
    case TaskKind::kProduct: Products::run(task.product, part, Weights(), pool, wait); break;
    case TaskKind::kAttentionRuns: attention_runs(task.attention, part, n_parts, pool, wait); break;
    case TaskKind::kAttentionMerge:
      attention_merge(task.attention, part, n_parts, reinterpret_cast<float*>(pool), wait);
      break;
    case TaskKind::kDeltaStep: delta_step(task.delta, part, reinterpret_cast<float*>(pool), wait); break;
    case TaskKind::kDeltaCommit: delta_commit(task.delta, part, n_parts, wait); break;
    case TaskKind::kAdjust:
      wait.has_passed();
      Weights::wait_until_finished();
      adjust_logits(task.sample, part, pool);
      break;
    case TaskKind::kSample: choose_token(task.sample, pool, wait); break;
  }
}

LB_DEVICE void copy_streams(const Mega& p, unsigned char* shared, int n_copiers) {
  const auto* from = reinterpret_cast<const uint32_t*>(p.streams + long(block_id()) * p.n_streams);
  const int n = p.stream_counts[block_id()] * int(sizeof(StreamStep) / 4);
  for (int i = thread_id(); i < n; i += n_copiers) store(shared + p.memory.streams_at + 4 * i, from[i]);
}

// Addresses of shared memory are made anew where they are needed: tasks need the registers.
LB_DEVICE TaskStep* steps_of(const Mega& p) {
  unsigned char* shared = dynamic_shared<unsigned char>();
  return reinterpret_cast<TaskStep*>(shared + forget(p.memory.steps_at));
}
// Brings a task into its half of shared memory; there after copy_wait and a barrier.
LB_DEVICE void fetch_task(const Mega& p, int i, int half) {
  const int offset = 4 * thread_id();
  const uint16_t task = load<TaskStep>(steps_of(p) + i).task;
  if (offset < int(sizeof(Task)))
    copy_async<4>(dynamic_shared<unsigned char>() + half * 512 + offset,
                  reinterpret_cast<const char*>(p.tasks + task) + offset);
  copy_commit();
}

LB_DEVICE void begin_step(const Mega& p, const TaskStep& step, int token, int i) {
  if (!is_watcher()) return;
  MegaState& state = mega_state();
  state.goal = arrivals_before(p, token) + uint32_t(phase_of(step)) * uint32_t(n_blocks());
  state.phase = uint32_t(phase_of(step));
  if constexpr (kTakesTimes) state.times = p.times == nullptr ? nullptr : p.times + long(block_id()) * p.n_steps + i;
  stamp(&StepTimes::began);
}

// By one thread, behind step i, if the next one waits for that. Not by who watches: a release takes its time, and what
// precedes the next wait may be done meanwhile. Behind a product who finishes it arrives.
template <class Weights>
LB_DEVICE void arrive(const Mega& p, int token, int i) {
  const int n_phases = phases_behind(p, steps_of(p), token, i);
  if (n_phases == 0) return;
  int& n_arrived = mega_state().n_arrived;
  if (Weights::kHelpers == 0 || !makes_rows(load<TaskStep>(steps_of(p) + i))) {
    Weights::wait_until_finished();
    add_release(p.arrived, uint32_t(n_phases - n_arrived));
  }
  n_arrived = n_phases;
}

// A barrier of the block, behind which all know whether it stops.
LB_DEVICE bool has_stopped(int half) {
  MegaState& state = mega_state();
  if (is_watcher()) {
    state.has_stopped[half] = state.gave_up;
    if (state.gave_up != 0) store_release_system(&state.report->stuck, state.phase + 1);
  }
  block_barrier();
  return state.has_stopped[half] != 0;
}

// By all warps but the helping one, when a token's last phase is over or the block has stopped waiting for that.
LB_DEVICE bool goes_on(const Mega& p, int token, int half) {
  MegaState& state = mega_state();
  if (is_watcher()) {
    state.goal = arrivals_before(p, token);
    state.phase = uint32_t(p.n_phases);
    if constexpr (kTakesTimes) state.times = nullptr;  // what follows is no step
  }
  PhaseWait{.number = 0, .made_by = 0, .is_barrier = true}();
  return !has_stopped(half) && *p.goes_on != 0;
}

// Weights: StreamedWeights or DirectWeights, how products get theirs.
template <class Products, class Weights>
LB_DEVICE void megakernel(const Mega& p) {
  constexpr int kCopiers = kMegaThreads + Weights::kHelpers;
  unsigned char* shared = dynamic_shared<unsigned char>();
  MegaState* state = &mega_state();
  for (int i = thread_id(); i < p.n_steps; i += kCopiers)
    store(steps_of(p) + i, load<TaskStep>(p.steps + long(block_id()) * p.n_steps + i));
  copy_streams(p, shared, kCopiers);
  if (thread_id() == 0) {
    Weights::init(p);
    state->arrived = p.arrived;
    state->words = p.words;
    state->report = p.report;
    state->patience_ns = p.patience_ns;
    const uint64_t now = time_ns();  // a look at a word takes longer than one at the clock
    state->most_polls = uint32_t(p.patience_ns) / uint32_t(max(4 * int(time_ns() - now), kLeastPollNs));
    state->n_arrived = 0;
    state->gave_up = 0;
  }
  whole_block_barrier();
  if (thread_id() >= kMegaThreads) return Weights::help(p);

  int half = 0;  // where the task in hand is
  fetch_task(p, 0, half);
  copy_wait<0>();
  block_barrier();

  int i = 0;  // of the block's steps; little is kept across tasks, which need the registers
  for (int token = 0; token < p.n_tokens;) {
    const TaskStep now = load<TaskStep>(steps_of(p) + i);
    begin_step(p, now, token, i);
    fetch_task(p, following(p, i), half ^ 1);
    const uint32_t number = words_number(p, token);
    const unsigned char* task = dynamic_shared<unsigned char>() + half * 512;
    run_task<Products, Weights>(*reinterpret_cast<const Task*>(task), now,
                                PhaseWait{.number = number,
                                          .made_by = number + uint32_t(phase_of(now)) * uint32_t(n_blocks()),
                                          .is_barrier = waits(now)});
    copy_wait<0>();
    if (has_stopped(half)) return Weights::stop();
    if (is_watcher()) stamp(&StepTimes::done);
    if (thread_id() == 0) arrive<Weights>(p, token, i);
    half ^= 1;
    i = following(p, i);
    if (i != 0) continue;
    ++token;
    if (token < p.n_tokens && !goes_on(p, token, half)) return Weights::stop();
  }
}

}  // namespace lb::gpu
