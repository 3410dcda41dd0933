// Compiles recorded nodes to a plan: selects the kernel and builds the tables in order.
#include <algorithm>

#include "base/error.h"
#include "gpu/megakernel/schedule/geometry.h"
#include "gpu/megakernel/schedule/schedule.h"

namespace lb::gpu {
namespace {

// Two kernels, for chips with bulk copies and for others, and the quantised weights that both support. All kernels
// support plain weights.
struct MegaKernels {
  const char *streamed, *direct;
  std::vector<DType> types;
};
const std::vector<MegaKernels>& mega_kernels() {
  static const std::vector<MegaKernels> kernels = {
      {"megakernel_plain_kernel", "megakernel_plain_direct_kernel", {}},
      {"megakernel_32_kernel",
       "megakernel_32_direct_kernel",
       {DType::kQ8_0, DType::kQ4_0, DType::kQ4_1, DType::kQ5_0, DType::kQ5_1, DType::kIQ4_NL, DType::kMXFP4,
        DType::kNVFP4, DType::kF8_E4M3}},
      {"megakernel_256_kernel",
       "megakernel_256_direct_kernel",
       {DType::kQ8_0, DType::kQ2_K, DType::kQ3_K, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K, DType::kIQ4_XS}},
  };
  return kernels;
}

// Sets the share of a task that each of n_parts blocks gets: rows of a product, slices of a recurrence's S.
void set_part_sizes(Task& task, int n_parts) {
  if (product_of(task) != nullptr) {
    ProductTask& product = *product_of(task);
    const int units = product.op.n_out / product.row_unit;
    product.rows_each = units / n_parts * product.row_unit;
    product.more = units % n_parts;
  } else if (task.kind == TaskKind::kDeltaStep) {
    DeltaTask& delta = task.delta;
    delta.slices_each = delta.n_units / n_parts << delta.unit_shift;
    delta.more = delta.n_units % n_parts;
    const int max_slices = delta.slices_each + (delta.more > 0 ? 1 << delta.unit_shift : 0);
    delta.team_slices = max_slices > kMegaThreads / 32 >> delta.team_shift ? 1 << delta.unit_shift : 1;
  }
}

}  // namespace

// The first kernel that supports all weights. A target may omit a kernel that is slower there than the graph.
Schedule::Kernel Schedule::kernel() const {
  for (const MegaKernels& kernels : mega_kernels()) {
    const auto takes = [&](const Node& node) {
      const ProductTask* product = product_of(node.task);
      if (product == nullptr) return true;
      const DType type = product->op.type;
      return is_plain(type) || std::ranges::find(kernels.types, type) != kernels.types.end();
    };
    if (!std::ranges::all_of(nodes_, takes)) continue;
    if (target_.has(kernels.streamed)) return {kernels.streamed, true};
    LB_CHECK(target_.has(kernels.direct), kUnsupported, "[megakernel] the pack of ", target_.name, " has no ",
             kernels.streamed, " or ", kernels.direct);
    return {kernels.direct, false};
  }
  fail(ErrorCode::kUnsupported, "[megakernel] no kernel takes these weight types together");
}

int Schedule::last_phase() const {
  int last = 0;
  for (const Node& node : nodes_) last = std::max(last, node.phase);
  return last;
}

MegaPlan Schedule::compile(const SampleOnGrid& sample, const NextToken& next, const TokenBudget& budget) {
  const int n_blocks = target_.n_sms;
  require(n_blocks <= kMaxSampleBlocks, "has a sampler for at most 256 multiprocessors");
  require(n_kept_ == nullptr || n_kept_ == next.n_past, "keeps rows by the number of tokens before the step");
  MegaPlan plan = {};
  // The sampler's second step is a separate phase; of ranks, both are.
  plan.n_phases = last_phase() + (n_ranks_ > 1 ? 3 : 2);
  plan.n_mailboxes = plan_mailboxes();
  plan.n_words = n_ranks_ > 1 ? sums_words() + n_ranks_ + 1 : 0;
  plan.has_timeline = target_.has_timeline;
  StepLists lists = assign(n_blocks);
  add_sampler(sample, next, budget, plan, lists);
  finish_steps(plan, lists);
  plan.tasks.push_back({.kind = TaskKind::kNothing, .embed = {}});
  for (const Node& node : nodes_) plan.tasks.push_back(node.task);
  for (const TaskStep& step : plan.steps) set_part_sizes(plan.tasks[step.task], step.n_parts);

  const Kernel chosen = kernel();
  plan_memory(plan);
  if (chosen.has_stream) plan_ring(plan);
  plan.launch = checked({.kernel = chosen.name,
                         .grid = {uint32_t(n_blocks), 1, 1},
                         .block = {uint32_t(kMegaThreads + (chosen.has_stream ? kMegaHelpers : 0)), 1, 1},
                         .shared_bytes = size_t(plan.memory.ring_at) + plan.memory.ring_bytes,
                         .cooperative = true},
                        target_, "[megakernel]");
  if (chosen.has_stream) plan_streams(plan);
  return plan;
}

}  // namespace lb::gpu
