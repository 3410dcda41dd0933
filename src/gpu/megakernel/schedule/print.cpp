// Prints a schedule as text, for Session.decode_path and lucebox bench.
#include <algorithm>
#include <sstream>

#include "base/dtype.h"
#include "base/error.h"
#include "gpu/megakernel/schedule/schedule.h"
#include "gpu/megakernel/schedule/weight_chunks.h"

namespace lb::gpu {
namespace {

const char* name_of(TaskKind kind) {
  switch (kind) {
    case TaskKind::kNothing: return "nothing";
    case TaskKind::kEmbed: return "embed";
    case TaskKind::kRopeTable: return "rope_table";
    case TaskKind::kProduct: return "product";
    case TaskKind::kAttentionSplits: return "attention_splits";
    case TaskKind::kAttentionMerge: return "attention_merge";
    case TaskKind::kDeltaStep: return "delta_step";
    case TaskKind::kDeltaCommit: return "delta_commit";
    case TaskKind::kExpertActs: return "expert_acts";
    case TaskKind::kExpertSums: return "expert_sums";
    case TaskKind::kAdjust: return "adjust";
    case TaskKind::kSample: return "sample";
  }
  return "?";
}

}  // namespace

std::string to_string(const Task& task) {
  if (task.kind == TaskKind::kExpertActs || task.kind == TaskKind::kExpertSums) {
    const ExpertTask& p = task.experts;
    return cat(name_of(task.kind), " ", name(p.product.op.type), " of ", p.k, " of ", p.n_experts,
               p.product.kept_stride > 0 ? ", kept" : "");
  }
  if (task.kind != TaskKind::kProduct) return name_of(task.kind);
  const char* const from[] = {"", " of rms_norm", " of codes", " of gated_rms_norm", " of codes of gated_rms_norm"};
  const Linear& op = task.product.op;
  return cat(name(op.type), " [", op.n_out, ", ", op.n_in, "]", from[int(task.product.from)],
             task.product.up ? ", gated" : "", op.add ? " + y" : "",
             task.product.rows_of == RowsOf::kShares ? ", of all ranks" : "",
             task.product.kept_stride > 0 ? ", kept" : "");
}

std::string to_string(const MegaPlan& plan) {
  std::ostringstream out;
  out << plan.launch << ", " << plan.n_phases << " phases";
  if (plan.memory.ring_bytes > 0) out << ", a ring of " << plan.memory.ring_bytes / 1024 << " KB";
  if (plan.is_in_parts) out << ", in parts of " << kPartUnits * 16 / 1024 << " KB";
  out << "\n";
  for (int phase = 0; phase < plan.n_phases; ++phase) {
    std::vector<std::pair<int, int>> tasks;  // task, parts
    for (const TaskStep& step : plan.steps)
      if (phase_of(step) == phase && step.task != 0 &&
          std::ranges::find(tasks, std::pair(int(step.task), int(step.n_parts))) == tasks.end())
        tasks.emplace_back(step.task, step.n_parts);
    std::ranges::sort(tasks);
    out << phase << ":";
    for (const auto& [task, parts] : tasks)
      out << (task == tasks[0].first ? " " : ", ") << to_string(plan.tasks[task]) << " x" << parts;
    out << "\n";
  }
  return out.str();
}

}  // namespace lb::gpu
