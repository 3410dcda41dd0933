// A decode step, or several, in one cooperative launch, which interprets the schedule of gpu/megakernel/shape.h. Every
// task is the body of its op's ordinary kernel.
//
// Each block goes through its own steps. A task first loads what does not depend on earlier phases (weights, norm
// weights, the recurrent state), then waits for its inputs. The next task's record is copied to shared memory while the
// current task runs. Bound: bandwidth of the weights, plus about a microsecond per phase. Notebook:
// docs/kernels/megakernel.md.
#pragma once

#include "gpu/elementwise/embed_row.h"
#include "gpu/elementwise/rope_angles.h"
#include "gpu/megakernel/argmax.h"
#include "gpu/megakernel/attention.h"
#include "gpu/megakernel/delta.h"
#include "gpu/megakernel/experts.h"
#include "gpu/megakernel/mailbox.h"
#include "gpu/megakernel/ranks.h"
#include "gpu/megakernel/stage_x.h"
#include "gpu/sampling/next_token.h"

namespace lb::gpu {

// The sampler's first step, on the logits that this block has just computed, or on its part of all ranks' logits.
LB_NOINLINE void adjust_logits(const SampleTask& p, int part, unsigned char* pool, PhaseWait wait) {
  assume_shared(&p);
  Work work = work_of(p.sample, reinterpret_cast<uint64_t*>(pool));
  work.begin = part * p.rows_each + min(part, p.more);
  work.end = min(work.begin + p.rows_each + (part < p.more ? 1 : 0), p.sample.op.vocab);
  if (has_ranks(p)) await_logits(p, work.begin, work.end, wait);
  adjust(work);
  if (asks_for_likeliest(work.options) && thread_id() == 0)
    send_best(p, work.row(SampleRow::kBest)[block_id()], wait.tag);
}

// Lane 0 reads host memory across the bus. The other lanes get n_written, and so does lane 0 if the launch computes one
// token.
LB_DEVICE uint32_t tokens_allowed(const SampleTask& p, uint32_t n_written) {
  return lane() == 0 && p.budget.keep_going != nullptr ? load_relaxed_system(p.budget.allowed) : n_written;
}

// Ends the step once the token is chosen: publishes the next step's numbers, for which the other blocks wait. Called by
// a warp. Returns whether the launch computes another token.
LB_DEVICE bool end_step(const SampleTask& p, const StepNumbers& before, uint32_t allowed, int32_t token,
                        const PhaseWait& wait) {
  bool keep_going = int32_t(allowed - before.n_written) > 1;
  if (has_ranks(p) && lane() == 0) keep_going = agreed(p, keep_going, wait);
  if (p.budget.keep_going != nullptr && lane() == 0) *p.budget.keep_going = keep_going ? 1 : 0;
  move_on(p.next, before, token);
  return keep_going;
}

LB_DEVICE void tell_host(const SampleTask& p, uint32_t n_written, bool keep_going) {
  if (p.budget.keep_going != nullptr && lane() == 0 && !keep_going) *p.budget.ended = n_written + 1;
  tell_host(p.next, n_written);
}

// Arrives at the end of a token's last phase.
LB_DEVICE void arrive_at_end() {
  if (thread_id() == 0) add_release(mega_state().arrived, 1u);
}

// Greedy choice by a warp of the last block, which has the least work next. It loads its other inputs before it spins
// on the blocks' keys. All blocks continue before the token is recorded and the host notified.
LB_NOINLINE void choose_likeliest(const SampleTask& p, PhaseWait wait) {
  assume_shared(&p);
  wait.mark_ready();
  if (block_id() != n_blocks() - 1 || warp() != 0) return arrive_at_end();
  const Sample& op = p.sample.op;
  StepNumbers before = {};
  before.read(p.next);
  const uint32_t allowed = tokens_allowed(p, before.n_written);
  const uint64_t best = best_of_all(p, wait);
  warp_barrier();
  if (wait.has_timed_out()) return;
  const bool is_chosen = is_choosable(op, best, lane() == 0);
  const int token = is_chosen ? id_of(best) : 0;
  const bool keep_going = end_step(p, before, allowed, token, wait);
  warp_barrier();
  arrive_at_end();
  if (is_chosen && lane() == 0) {
    op.result->token = token;
    op.result->problem = SampleProblem::kNone;
    op.result->n_top = 0;
  }
  warp_barrier();
  tell_host(p, before.n_written, keep_going);
  if (is_chosen && lane() == 0) record(op, *op.options, token);
}

LB_NOINLINE_NESTED void choose_token(const SampleTask& p, unsigned char* pool, PhaseWait wait) {
  if (asks_for_likeliest(*p.sample.op.options)) return choose_likeliest(p, wait);
  wait();
  if (wait.has_timed_out()) return;
  Work work = work_of(p.sample, reinterpret_cast<uint64_t*>(pool));
  const bool is_chooser = choose(work);
  const SampleOptions& options = work.options;
  if (options.n_top > 0 && !sampling::is_greedy(options.temperature))
    grid_barrier(&p.sample.grid->barrier);  // block 0 has written the top tokens
  block_barrier();
  if (is_chooser && warp() == 0) {
    StepNumbers before = {};
    before.read(p.next);
    const uint32_t allowed = tokens_allowed(p, before.n_written);
    tell_host(p, before.n_written, end_step(p, before, allowed, p.next.sampled->token, wait));
    warp_barrier();
  }
  arrive_at_end();
}

LB_NOINLINE void embed(const EmbedTask& p, int part, int n_parts, PhaseWait wait) {
  assume_shared(&p);
  wait.without_mailboxes();
  embed_row(p.op, 0, part * n_threads() + thread_id(), n_parts * n_threads(),
            [&](int i, float value) { wait.write(p.y_mailbox + mailbox_index(i), value); });
}

LB_NOINLINE void make_table(const RopeTable& p, int part, int n_parts, PhaseWait wait) {
  assume_shared(&p);
  wait.without_mailboxes();
  rope_angles(p, part * n_threads() + thread_id(), n_parts * n_threads());
}

template <class Products, class Weights>
LB_DEVICE void run_task(const Task& task, const TaskStep& step, const StreamCursor& cursor, PhaseWait wait) {
  unsigned char* pool = dynamic_shared<unsigned char>() + kMegaPoolAt;
  const int part = step.part, n_parts = step.n_parts;
  switch (task.kind) {
    case TaskKind::kNothing: wait.without_mailboxes(); break;
    case TaskKind::kEmbed: embed(task.embed, part, n_parts, wait); break;
    case TaskKind::kRopeTable: make_table(task.rope, part, n_parts, wait); break;
    case TaskKind::kProduct:
      if constexpr (Weights::kHelpers == 0)
        Products::run(task.product.op.type,
                      [&](auto format) { product<decltype(format)>(task.product, part, pool, wait); });
      break;
    case TaskKind::kAttentionSplits: attention_splits(task.attention, part, n_parts, pool, wait); break;
    case TaskKind::kAttentionMerge:
      attention_merge(task.attention, part, n_parts, reinterpret_cast<float*>(pool), wait);
      break;
    case TaskKind::kDeltaStep: delta_step(task.delta, part, reinterpret_cast<float*>(pool), wait); break;
    case TaskKind::kDeltaCommit: delta_commit(task.delta, part, n_parts, wait); break;
    case TaskKind::kExpertActs:
      if constexpr (!kHasScalarRegisters)  // they would spill
        Products::run(task.experts.product.op.type, [&](auto format) {
          expert_acts<decltype(format), Weights::kActMatrices>(task.experts, part, pool, wait);
        });
      break;
    case TaskKind::kExpertSums:
      if constexpr (!kHasScalarRegisters)
        Products::run(task.experts.product.op.type, [&](auto format) {
          expert_sums<decltype(format), Weights::kSumRows>(task.experts, part, pool, wait);
        });
      break;
    case TaskKind::kAdjust:
      if (!has_ranks(task.sample)) {
        wait.mark_ready();
        if (Weights::kHelpers > 0 && part < n_parts && is_plain_choice(*task.sample.sample.op.options))
          break;  // the epilogue warp has already sent the likeliest token
        Weights::wait_until_finished(cursor);
      }
      adjust_logits(task.sample, part, pool, wait);
      break;
    case TaskKind::kSample: choose_token(task.sample, pool, wait); break;
  }
}

// opaque(): each use recomputes the address, because tasks need the registers.
LB_DEVICE const TaskStep* steps_of(const Mega& p) {
  const unsigned char* shared = dynamic_shared<unsigned char>();
  return reinterpret_cast<const TaskStep*>(shared + opaque(p.memory.steps_at));
}

LB_DEVICE void begin_stamps(const Mega& p, int i) {
  if constexpr (kHasTimeline) {
    if (!is_watcher()) return;
    mega_state().times = p.times == nullptr ? nullptr : p.times + long(block_id()) * p.n_steps + i;
    stamp(&StepTimes::began);
  }
}

// Ends the block after a step in which a thread timed out.
template <class Weights>
LB_DEVICE void stop(int phase, const StreamCursor& cursor) {
  if (is_watcher()) store_release_system(&mega_state().report->stuck, uint32_t(phase) + 1);
  Weights::stop(cursor);
}

// Waits for the next token's numbers, when a token's last phase is over. Called by the multiplying warps. Returns
// whether another token follows; its first step uses `half`.
template <class Weights>
LB_DEVICE bool keep_going(const Mega& p, int token, int half, const StreamCursor& cursor) {
  if constexpr (kHasTimeline) {
    if (is_watcher()) mega_state().times = nullptr;  // no step waits here
  }
  const PhaseWait wait = {.base_tag = 0, .tag = first_tag(p, token), .is_barrier = true, .half = half};
  // Read before the barrier: after it, another task may replace this one.
  const NumberSource numbers(task_in(half ^ 1).sample.next);
  wait();
  if (wait.has_timed_out()) {
    stop<Weights>(p.n_phases, cursor);
    return false;
  }
  if (*p.keep_going != 0) {
    fetch_numbers(numbers);
    return true;
  }
  Weights::stop(cursor);
  return false;
}

// A step's position in the launch: token, half of the double buffers, index in the block's list. Packed, because tasks
// need the other registers.
struct StepNumber {
  int packed = 0;
  static constexpr int kHalf = 1 << 15, kToken = 1 << 16;
  static_assert(kMegaMaxSteps <= kHalf);

  LB_DEVICE int token() const { return packed / kToken; }
  LB_DEVICE int half() const { return packed / kHalf & 1; }
  LB_DEVICE int step() const { return packed & (kHalf - 1); }
  LB_DEVICE int next_step(const Mega& p) const { return step() + 1 == p.n_steps ? 0 : step() + 1; }
  LB_DEVICE void advance(const Mega& p) {
    const int next = next_step(p);
    packed = (token() + (next == 0 ? 1 : 0)) * kToken + (half() ^ 1) * kHalf + next;
  }
};

// Finishes a step: stops, arrives, and waits at a token's end. Returns false after the last step.
template <class Weights>
LB_DEVICE bool finish_step(const Mega& p, StepNumber at) {
  const TaskStep done = load<TaskStep>(steps_of(p) + at.step());
  const StreamCursor next = mega_state().cursors[at.half() ^ 1];
  if (mega_state().timed_out[at.half()] != 0) {
    stop<Weights>(phase_of(done), next);
    return false;
  }
  if (is_watcher()) stamp(&StepTimes::done);
  if (done.arrives != 0 && thread_id() == 0 && !(Weights::kHelpers > 0 && makes_rows(done))) {
    Weights::wait_until_finished(next);  // after a product, its epilogue warp arrives instead
    add_release(p.arrived, done.arrives);
  }
  if (at.next_step(p) != 0) return true;
  return at.token() + 1 < p.n_tokens && keep_going<Weights>(p, at.token() + 1, at.half() ^ 1, next);
}

// Weights: StreamedWeights or DirectWeights.
template <class Products, class Weights>
LB_DEVICE void megakernel(const Mega& p) {
  constexpr int kAllThreads = kMegaThreads + Weights::kHelpers;
  unsigned char* shared = dynamic_shared<unsigned char>();
  MegaState* state = &mega_state();
  for (int i = thread_id(); i < p.n_steps; i += kAllThreads)
    store(shared + p.memory.steps_at + i * int(sizeof(TaskStep)),
          load<TaskStep>(p.steps + long(block_id()) * p.n_steps + i));
  if (thread_id() == 0) {
    Weights::init();
    state->arrived = p.arrived;
    state->mailboxes = p.mailboxes;
    state->report = p.report;
    state->ranks = p.ranks;
    state->timeout_ns = p.timeout_ns;
    const uint64_t now = time_ns();  // a mailbox load takes longer than a clock read
    state->max_polls = uint32_t(p.timeout_ns) / uint32_t(max(4 * int(time_ns() - now), kMinPollNs));
    for (uint32_t& timed_out : state->timed_out) timed_out = 0;
    state->cursors[0] = {};
  }
  whole_block_barrier();
  if (thread_id() >= kMegaThreads) return Weights::help(p);

  fetch_numbers(NumberSource(p.tasks[load<TaskStep>(steps_of(p) + p.n_steps - 1).task].sample.next));
  fetch_task(p.tasks + load<TaskStep>(steps_of(p)).task, 0);
  copy_wait<0>();
  block_barrier();

  LB_UNROLL_BY(1)
  for (StepNumber at;; at.advance(p)) {
    const int half = at.half();
    const TaskStep now = load<TaskStep>(steps_of(p) + at.step());
    begin_stamps(p, at.step());
    const uint32_t base_tag = first_tag(p, at.token());
    const PhaseWait wait = {.base_tag = base_tag,
                            .tag = base_tag + uint32_t(phase_of(now)) * uint32_t(opaque(n_blocks())),
                            .is_barrier = waits(now),
                            .half = half};
    const StepContext context = {.now = mega_state().cursors[half],
                                 .next = p.tasks + load<TaskStep>(steps_of(p) + at.next_step(p)).task,
                                 .next_half = half ^ 1};
    const Task& task = task_in(half);
    if (Weights::kHelpers > 0 && makes_rows(now)) {
      if constexpr (Weights::kHelpers > 0)
        Products::run(task.product.op.type, [&](auto format) {
          product<decltype(format)>(task.product, now, context, dynamic_shared<unsigned char>() + kMegaPoolAt, wait);
        });
    } else {
      Weights::wait_until_published(context.now);
      context.prepare_next(now);
      run_task<Products, Weights>(task, now, context.now, wait);
      copy_wait<0>();
      block_barrier();
    }
    at.packed = opaque(at.packed);  // so that nothing derived from it occupies registers
    if (!finish_step<Weights>(p, at)) return;
  }
}

}  // namespace lb::gpu
