// Plans a block's shared memory, and the weights that stream through its ring (weight_chunks.h).
#include <algorithm>
#include <span>

#include "base/error.h"
#include "gpu/megakernel/schedule/geometry.h"
#include "gpu/megakernel/schedule/schedule.h"
#include "gpu/megakernel/schedule/weight_chunks.h"

namespace lb::gpu {
namespace {

// Appends the weight chunks of a step's part in the order in which the block uses them: by pass, then by matrix.
void add_chunks(TaskStep& step, const ProductTask& p, int ring_bytes, std::vector<WeightChunk>& chunks) {
  const size_t n_before = chunks.size();
  const int begin = step.part * p.rows_each + std::min<int>(step.part, p.more) * p.row_unit;
  const int rows = p.rows_each + (step.part < p.more ? p.row_unit : 0), pass = p.up != nullptr ? p.pass_rows : rows;
  step.n_passes = uint16_t(parts_of(rows, p.pass_rows));
  for (int first = 0; first < rows; first += pass)
    for (const void* w : {static_cast<const void*>(p.op.w), p.up}) {
      if (w == nullptr) continue;
      const auto cut = cut_in_chunks(p, w, begin + first, std::min(pass, rows - first));
      chunks.insert(chunks.end(), cut.begin(), cut.end());
      step.skews = skews_of(p, w, begin + first);
    }
  LB_ASSERT(chunks.size() - n_before <= UINT16_MAX);
  limit_in_flight(std::span(chunks).subspan(n_before), ring_bytes);
  step.n_chunks = uint16_t(chunks.size() - n_before);
}

}  // namespace

// Max shared memory of a task, apart from tasks, sums and steps.
size_t Schedule::pool_bytes() const {
  size_t bytes = kSamplePoolBytes;
  for (const Node& node : nodes_) {
    if (node.task.kind == TaskKind::kProduct)
      bytes = std::max(bytes, product_pool_bytes(node.task.product.op.n_in, !is_plain(node.task.product.op.type)));
    if (node.task.kind == TaskKind::kExpertActs || node.task.kind == TaskKind::kExpertSums) {
      const Linear& op = node.task.experts.product.op;
      bytes = std::max(bytes, expert_scratch_at(op.n_in, !is_plain(op.type)) + kExpertScratchBytes);
    }
    if (node.task.kind == TaskKind::kDeltaStep) bytes = std::max(bytes, kDeltaPoolBytes);
    if (node.task.kind == TaskKind::kAttentionSplits) {
      const SplitTask& task = node.task.attention;
      const int dim = task.op.cache.head_dim, value_bytes = task.op.cache.k_type == KvType::kF32 ? 4 : 2;
      bytes = std::max(
          bytes, task.packed.stages > 0 ? packed_pool_bytes(dim, task.packed) : split_pool_bytes(dim, value_bytes));
    }
    if (node.task.kind == TaskKind::kAttentionMerge) bytes = std::max(bytes, kMergePoolBytes);
  }
  return bytes;
}

// Places the steps and the ring after the tasks' pool.
void Schedule::plan_memory(MegaPlan& plan) const {
  MegaMemory& memory = plan.memory;
  memory.steps_at = round_up(kMegaPoolAt + int(pool_bytes()), 16);
  memory.ring_at = round_up(memory.steps_at + plan.n_steps * int(sizeof(TaskStep)), 128);
  require(size_t(memory.ring_at + kMegaStaticBytes) <= target_.shared_block_bytes,
          "needs more shared memory for a row than a block has");
}

// Gives the ring all remaining shared memory.
void Schedule::plan_ring(MegaPlan& plan) const {
  size_t max_bytes = 0;  // max over chunks
  for (const Node& node : nodes_) {
    if (node.task.kind != TaskKind::kProduct) continue;
    const ProductTask& p = node.task.product;
    max_bytes = std::max(max_bytes, chunk_bytes(p.op.type, p.op.n_in, p.n_teams * p.batch_rows));
  }
  MegaMemory& memory = plan.memory;
  memory.ring_bytes = (target_.shared_block_bytes - kMegaStaticBytes - memory.ring_at) / 16 * 16;
  require(memory.ring_bytes >= int(2 * max_bytes), "needs room for two batches of weight rows in shared memory");
}

// Converts each block's weights of a token to copies into its ring.
void Schedule::plan_streams(MegaPlan& plan) const {
  std::vector<std::vector<WeightChunk>> blocks(plan.n_blocks());
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    TaskStep& step = plan.steps[i];
    const Task& task = plan.tasks[step.task];
    if (task.kind == TaskKind::kProduct)
      add_chunks(step, task.product, plan.memory.ring_bytes, blocks[i / plan.n_steps]);
  }
  plan.is_in_parts = comes_in_parts(blocks, plan.n_phases, plan.memory.ring_bytes);
  size_t max_chunks = 0;  // max over blocks
  for (auto& chunks : blocks) {
    if (plan.is_in_parts) cut_in_parts(chunks);
    place_in_ring(chunks, plan.memory.ring_bytes);
    max_chunks = std::max(max_chunks, chunks.size());
  }
  plan.n_streams = round_up(int(max_chunks), kStreamChunks);
  plan.streams.reserve(blocks.size() * plan.n_streams * quant::kMaxPlanes);
  for (auto& chunks : blocks) {
    plan.stream_counts.push_back(static_cast<int32_t>(chunks.size()));
    chunks.resize(plan.n_streams);
    for (const WeightChunk& chunk : chunks) {
      const auto copies = copies_of(chunk, plan.memory.ring_at);
      plan.streams.insert(plan.streams.end(), copies.begin(), copies.end());
    }
  }
}

}  // namespace lb::gpu
