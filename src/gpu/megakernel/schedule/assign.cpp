// Assigns parts of tasks to blocks: each block's list of steps, and the barriers between phases.
#include <algorithm>

#include "base/error.h"
#include "gpu/megakernel/schedule/geometry.h"
#include "gpu/megakernel/schedule/schedule.h"

namespace lb::gpu {
namespace {

// The index of a product's first row among the logits.
int first_logit_of(const ProductTask& p) { return p.rows_of == RowsOf::kLogits ? p.peers_at : 0; }

TaskStep idle(int phase) { return {0, 0, 1, uint16_t(phase)}; }

// Makes a block arrive after each step whose successor waits for all blocks, once for every completed phase. In a
// token's last phase the sampler's task arrives itself.
void set_arrivals(std::vector<TaskStep>& steps, int n_phases) {
  int n_arrived = 0;
  for (size_t i = 0; i < steps.size(); ++i) {
    const bool is_last = i + 1 == steps.size();
    const int n_over = phase_of(steps[i]) + 1;
    if (is_last || !waits(steps[i + 1]) || phase_of(steps[i + 1]) < n_over) continue;
    steps[i].arrives = uint16_t(n_over - n_arrived);
    n_arrived = n_over;
  }
  LB_ASSERT(n_arrived == n_phases - 1);
}

}  // namespace

// The phases that all blocks must enter through a barrier: the fewest that separate conflicting reads and writes of
// plain values. The kernel itself waits before a token's first phase.
std::vector<bool> Schedule::barriers() const {
  const int last = last_phase();
  std::vector<bool> waits(last + 1, false);
  for (int phase = 1; phase <= last; ++phase) {
    const auto is_apart = [&](const Node& before) {
      return std::find(waits.begin() + before.phase + 1, waits.begin() + phase + 1, true) != waits.begin() + phase + 1;
    };
    for (const Node& node : nodes_)
      for (const Node& before : nodes_)
        if (node.phase == phase && before.phase < phase && !is_apart(before) && conflict(before, node))
          waits[phase] = true;
  }
  return waits;
}

// Number of blocks for each of a phase's tasks, in proportion to bytes. In a latency-bound phase, products count by the
// number of their weights instead. Each task gets at least min_parts, unless those exceed a quarter of the remaining
// blocks.
std::vector<int> Schedule::share_blocks(const std::vector<int>& ids, int n_blocks) const {
  double bytes = 0;
  for (const int id : ids) bytes += nodes_[id].bytes;
  const auto load_of = [&](size_t i, int n_parts) {
    const Node& node = nodes_[ids[i]];
    const ProductTask* product = bytes < kLatencyBytes ? product_of(node.task) : nullptr;
    if (product == nullptr) return node.bytes / n_parts;
    return double(product->op.n_out) * product->op.n_in * (product->up != nullptr ? 2 : 1) / n_parts;
  };
  std::vector<int> parts(ids.size(), 1);
  int n_left = n_blocks - int(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    const int wanted = std::min({nodes_[ids[i]].min_parts, nodes_[ids[i]].max_parts}) - 1;
    const int given = std::clamp(wanted, 0, n_left / 4);
    parts[i] += given;
    n_left -= given;
  }
  while (n_left > 0) {  // the next block goes to the task with the most work per block
    int next = -1;
    for (size_t i = 0; i < ids.size(); ++i) {
      if (parts[i] >= nodes_[ids[i]].max_parts) continue;
      if (next < 0 || load_of(i, parts[i]) > load_of(next, parts[next])) next = int(i);
    }
    if (next < 0) break;
    ++parts[next];
    --n_left;
  }
  return parts;
}

// If a phase has more tasks than there are blocks, whole tasks are dealt round robin.
Schedule::StepLists Schedule::assign(int n_blocks) const {
  StepLists lists(n_blocks);
  for (int phase = 0; phase <= last_phase(); ++phase) {
    std::vector<int> ids;
    for (size_t i = 0; i < nodes_.size(); ++i)
      if (nodes_[i].phase == phase) ids.push_back(static_cast<int>(i));
    const auto step = [&](int id, int part, int n_parts) {
      return TaskStep{uint16_t(id + 1), uint16_t(part), uint16_t(n_parts), uint16_t(phase)};
    };
    if (int(ids.size()) > n_blocks) {
      for (size_t i = 0; i < ids.size(); ++i) lists[i % n_blocks].push_back(step(ids[i], 0, 1));
      continue;
    }
    const std::vector<int> parts = share_blocks(ids, n_blocks);
    int block = 0;
    for (size_t i = 0; i < ids.size(); ++i)
      for (int part = 0; part < parts[i]; ++part) lists[block++].push_back(step(ids[i], part, parts[i]));
    while (block < n_blocks) lists[block++].push_back(idle(phase));
  }
  return lists;
}

// The sampler runs on every block: first on the logits that the block itself has computed, then, a phase later, on all
// logits. Of ranks, it begins a phase later, when a block has the logits of all ranks, with an equal part of them.
void Schedule::add_sampler(const SampleOnGrid& sample, const NextToken& next, const TokenBudget& budget, MegaPlan& plan,
                           StepLists& lists) {
  const int last = last_phase(), n_blocks = int(lists.size()), vocab = sample.op.vocab;
  const auto makes_logits = [&](const TaskStep& step) {
    if (step.task == 0) return false;
    const Task& task = nodes_[step.task - 1].task;
    return task.kind == TaskKind::kProduct && task.product.op.y == sample.op.logits + first_logit_of(task.product);
  };
  const auto head = std::ranges::find_if(lists[0], makes_logits);
  LB_ASSERT(head != lists[0].end() && phase_of(*head) == last);
  const bool is_rank = n_ranks_ > 1;
  const int adjust_phase = is_rank ? last + 1 : last;
  const uint16_t n_parts = is_rank ? uint16_t(n_blocks) : head->n_parts, adjust = uint16_t(nodes_.size() + 1);
  for (const TaskKind kind : {TaskKind::kAdjust, TaskKind::kSample})
    nodes_.push_back({.task = {.kind = kind,
                               .sample = {.sample = sample,
                                          .next = next,
                                          .budget = budget,
                                          .rows_each = vocab / n_parts,
                                          .more = vocab % n_parts,
                                          .best_mailbox = {plan.n_mailboxes, adjust_phase},
                                          .flags_at = is_rank ? sums_words() : -1}},
                      .reads = {},
                      .writes = {},
                      .bytes = 1,
                      .min_parts = n_blocks,
                      .max_parts = n_blocks,
                      .phase = last});
  plan.n_mailboxes += 2 * n_blocks;
  for (int b = 0; b < n_blocks; ++b) {
    const TaskStep chooses = {uint16_t(adjust + 1), uint16_t(b), uint16_t(n_blocks), uint16_t(adjust_phase + 1)};
    if (is_rank) {
      lists[b].push_back({adjust, uint16_t(b), n_parts, uint16_t(adjust_phase)});
      lists[b].push_back(chooses);
      continue;
    }
    const auto own = std::ranges::find_if(lists[b], makes_logits);
    const uint16_t part = own == lists[b].end() ? n_parts : own->part;  // n_parts if the block has no logits
    LB_ASSERT(part == n_parts || own + 1 == lists[b].end());            // else kAdjust is its next step
    lists[b].push_back({adjust, part, n_parts, uint16_t(adjust_phase)});
    lists[b].push_back(chooses);
  }
}

// Pads the lists to equal length with idle steps before the sampler's steps of later phases, and sets each step's flags
// and arrivals.
void Schedule::finish_steps(MegaPlan& plan, StepLists& lists) const {
  const int last = last_phase();
  size_t n_steps = 0;
  for (const auto& list : lists) n_steps = std::max(n_steps, list.size());
  require(n_steps <= kMegaMaxSteps, "has room for 1024 steps of a block");
  std::vector<bool> is_barrier = barriers();
  is_barrier.resize(plan.n_phases, true);        // the sampler waits for all logits
  const int n_after = plan.n_phases - 1 - last;  // the sampler's steps after the last phase of the forward pass
  const auto is_a = [&](const TaskStep& step, TaskKind kind) {
    return step.task != 0 && nodes_[step.task - 1].task.kind == kind;
  };
  for (auto& list : lists) {
    list.insert(list.end() - n_after, n_steps - list.size(), idle(last));
    for (size_t i = 0; i < list.size(); ++i) {
      const auto is_before_a = [&](TaskKind kind) { return i + 1 < list.size() && is_a(list[i + 1], kind); };
      list[i].phase_bits |= (is_barrier[list[i].phase_bits] ? TaskStep::kWaits : 0) |
                            (is_a(list[i], TaskKind::kProduct) ? TaskStep::kMakesRows : 0) |
                            (is_before_a(TaskKind::kDeltaStep) ? TaskStep::kBeforeState : 0) |
                            (is_before_a(TaskKind::kAdjust) && n_after == 1 ? TaskStep::kBeforeAdjust : 0);
    }
    set_arrivals(list, plan.n_phases);
    plan.steps.insert(plan.steps.end(), list.begin(), list.end());
  }
  plan.n_steps = static_cast<int>(n_steps);
}

}  // namespace lb::gpu
