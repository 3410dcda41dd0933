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
#include "mega_product.h"
#include "mega_wait.h"
#include "next_token.h"
#include "rope_angles.h"
#include "sample_token.h"

namespace lb::gpu {

// The sampler's first step, of the logits that the block has just made itself.
LB_APART void adjust_logits(const SampleTask& p, int part, unsigned char* pool) {
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
  const bool is_chooser = block_id() == 0 && warp() == 0, goes_on = is_chooser && may_go_on(p);  // the wait hides it
  wait();
  if (!is_chooser) return;
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

LB_APART void choose_token(const SampleTask& p, unsigned char* pool, PhaseWait wait) {
  const SampleOptions& options = *p.sample.op.options;
  if (options.temperature == 0 && options.n_top < 0) return choose_likeliest(p, wait);
  wait();
  Work work = work_of(p.sample, reinterpret_cast<uint64_t*>(pool));
  const bool is_chooser = choose(work);
  if (options.n_top > 0 && options.temperature > 0) grid_barrier(&p.sample.grid->barrier);  // block 0 has written those
  if (!is_chooser) return;
  block_barrier();
  if (warp() == 0) end_token(p, may_go_on(p));
}

template <class Products>
LB_DEVICE void run_task(const Task& task, const TaskStep& step, unsigned char* shared, PhaseWait wait) {
  unsigned char* pool = shared + kMegaPoolAt;
  const int part = step.part, n_parts = step.n_parts;
  switch (task.kind) {
    case TaskKind::kNothing: wait(); break;
    case TaskKind::kEmbed:
      wait();
      embed_row(task.embed, 0, part * n_threads() + thread_id(), n_parts * n_threads());
      break;
    case TaskKind::kRopeTable:
      wait();
      rope_angles(task.rope, part * n_threads() + thread_id(), n_parts * n_threads());
      break;
    case TaskKind::kProduct: Products::run(task.product, part, *wait.stream, pool, wait); break;
    case TaskKind::kAttentionRuns: attention_runs(task.attention, part, n_parts, pool, wait); break;
    case TaskKind::kAttentionMerge:
      attention_merge(task.attention, part, n_parts, reinterpret_cast<float*>(pool), wait);
      break;
    case TaskKind::kDeltaStep: delta_step(task.delta, part, reinterpret_cast<float*>(pool), wait); break;
    case TaskKind::kDeltaCommit: delta_commit(task.delta, part, n_parts, wait); break;
    case TaskKind::kAdjust:
      wait.has_passed();
      adjust_logits(task.sample, part, pool);
      break;
    case TaskKind::kSample: choose_token(task.sample, pool, wait); break;
  }
}

// Brings a task into its half of shared memory; there after copy_wait and a barrier.
LB_DEVICE void fetch_task(const Mega& p, const TaskStep* steps, int i, int half, unsigned char* shared) {
  const int offset = 4 * thread_id();
  const uint16_t task = load<TaskStep>(steps + i).task;
  if (offset < int(sizeof(Task)))
    copy_async<4>(shared + half * 512 + offset, reinterpret_cast<const char*>(p.tasks + task) + offset);
  copy_commit();
}

LB_DEVICE void copy_streams(const Mega& p, unsigned char* shared) {
  const auto* from = reinterpret_cast<const uint32_t*>(p.streams + long(block_id()) * p.n_streams);
  const int n = p.stream_counts[block_id()] * int(sizeof(StreamStep) / 4);
  for (int i = thread_id(); i < n; i += n_threads() + kMegaHelpers)
    store(shared + p.memory.streams_at + 4 * i, from[i]);
}

// By all warps but the helping one, when a token's last phase is over or the block has stopped waiting for that.
LB_DEVICE bool goes_on(const Mega& p, MegaState* state, WeightStream* stream, int n_phases) {
  if (is_watcher()) {
    state->goal = p.first + uint32_t(n_phases) * uint32_t(n_blocks());
    state->phase = uint32_t(p.n_phases);
    state->times = nullptr;
  }
  PhaseWait{.state = state, .stream = stream, .words = nullptr, .number = 0, .made_by = 0, .is_barrier = true}();
  if (state->has_stopped != 0) report_stuck(*state);
  return state->has_stopped == 0 && *p.goes_on != 0;
}

template <class Products>
LB_DEVICE void megakernel(const Mega& p) {
  LB_SHARED(MegaState, states, 1);
  unsigned char* shared = dynamic_shared<unsigned char>();
  LB_SHARED(WeightStream, streams, 1);
  MegaState* state = &states[0];
  WeightStream* stream = &streams[0];
  TaskStep* steps = reinterpret_cast<TaskStep*>(shared + p.memory.steps_at);
  for (int i = thread_id(); i < p.n_steps; i += n_threads() + kMegaHelpers)
    store(steps + i, load<TaskStep>(p.steps + long(block_id()) * p.n_steps + i));
  copy_streams(p, shared);
  if (thread_id() == 0) {
    stream->init(p);
    state->arrived = p.arrived;
    state->report = p.report;
    state->patience_ns = p.patience_ns;
    state->most_polls = uint32_t(p.patience_ns / kLeastPollNs);
    state->has_stopped = 0;
  }
  whole_block_barrier();
  if (thread_id() >= kMegaThreads) return stream->bring(p.n_tokens);

  int half = 0;  // where the task in hand is
  fetch_task(p, steps, 0, half, shared);
  copy_wait<0>();
  block_barrier();

  int i = 0, of_tokens = 0, n_arrived = 0;  // of the block's steps; phases of the tokens before, and with an arrival
  for (int token = 0; token < p.n_tokens;) {
    const int next = i + 1 == p.n_steps ? 0 : i + 1;
    const TaskStep now = load<TaskStep>(steps + i);
    if (is_watcher()) {
      state->goal = p.first + uint32_t(of_tokens + phase_of(now)) * uint32_t(n_blocks());
      state->phase = uint32_t(phase_of(now));
      state->times = p.times == nullptr ? nullptr : p.times + long(block_id()) * p.n_steps + i;
      if (state->times != nullptr) state->times->began = time_ns();
    }
    fetch_task(p, steps, next, half ^ 1, shared);
    // One more than the blocks' arrivals before the phase, so that none is 0.
    const uint32_t number = p.first + uint32_t(of_tokens) * uint32_t(n_blocks()) + 1;
    run_task<Products>(*reinterpret_cast<const Task*>(shared + half * 512), now, shared,
                       PhaseWait{.state = state,
                                 .stream = stream,
                                 .words = p.words,
                                 .number = number,
                                 .made_by = number + uint32_t(phase_of(now)) * uint32_t(n_blocks()),
                                 .is_barrier = waits(now)});
    copy_wait<0>();
    block_barrier();
    if (state->has_stopped != 0) {
      report_stuck(*state);
      return stream->stop();
    }
    if (is_watcher() && state->times != nullptr) state->times->done = time_ns();
    // Not by who watches: a release takes its time, and what precedes the next wait may be done meanwhile.
    const TaskStep then = load<TaskStep>(steps + next);
    if (waits(then) && (next == 0 || phase_of(then) != phase_of(now))) {
      const int n_phases = of_tokens + phase_of(now) + 1;
      if (thread_id() == 0) add_release(p.arrived, uint32_t(n_phases - n_arrived));
      n_arrived = n_phases;
    }
    half ^= 1;
    i = next;
    if (next != 0) continue;
    ++token;
    of_tokens += p.n_phases;
    if (token < p.n_tokens && !goes_on(p, state, stream, of_tokens)) return stream->stop();
  }
}

}  // namespace lb::gpu
