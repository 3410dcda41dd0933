// Drafting ops: PreviousRow, TopTokens, DFlash 2's convolution and selector, GrowTree.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "cpu/kernels.h"
#include "cpu/tasks.h"
#include "cpu/tree.h"
#include "ops/draft_rules.h"
#include "ops/sample_rules.h"

namespace lb {

using cpu::for_ranges;

void CpuStream::run(const PreviousRow& op) {
  const size_t bytes = size_t(op.dim) * sizeof(float);
  const auto row = [&](auto* rows, int r) { return rows + long(r) * op.dim; };
  const int n = cpu::n_accepted(op.accepted);
  const float* before = n > 0 ? row(op.pending, op.accepted.path[n - 1]) : op.history;
  for (int r = 0; r < op.rows; ++r) {
    const int parent = cpu::parent_of(op.tree, r);
    std::memcpy(row(op.y, r), parent < 0 ? before : row(op.x, parent), bytes);
  }
  const int last_chunk = op.rows > 0 ? (op.rows - 1) / kMaxTree * kMaxTree : 0;
  if (last_chunk > 0) before = row(op.x, last_chunk - 1);
  if (before != op.history) std::memcpy(op.history, before, bytes);
  for (int r = last_chunk; r < op.rows; ++r) std::memcpy(row(op.pending, r - last_chunk), row(op.x, r), bytes);
}

void CpuStream::run(const TopTokens& op) {
  LB_ASSERT(op.k >= 1 && op.k <= std::min(op.vocab, kMaxTopTokens));
  for_ranges(pool(), op.rows, 8L * op.vocab, [&](int begin, int end) { kernels().top_tokens(op, begin, end); });
}

void CpuStream::run(const BlockConv& op) {
  LB_ASSERT(op.group >= 1 && op.dim % op.group == 0);
  for_ranges(pool(), op.rows, 2L * op.n_taps * op.dim,
             [&](int begin, int end) { kernels().block_conv(op, begin, end); });
}

// One row after another, because the token chosen in one row decides the scores of the next.
void CpuStream::run(const SelectCandidates& op) {
  LB_ASSERT(op.k >= 1 && op.k <= kMaxTopTokens && op.rank >= 1 && op.rank <= kMaxSelectorRank);
  float before[kMaxSelectorRank], after[kMaxSelectorRank];
  const auto codes = [&](const void* table, const int32_t* id, float* to) {
    kernels().embed({table, op.type, id, to, 1, op.rank, op.vocab}, 0, 1);
  };
  const int32_t* previous = op.root;
  for (int r = 0; r < op.rows; ++r) {
    int32_t* ids = op.ids + long(r) * op.k;
    float* logprobs = op.logprobs + long(r) * op.k;
    struct {
      int32_t id;
      float score;
    } candidates[kMaxTopTokens];
    codes(op.predecessors, previous, before);
    for (int j = 0; j < op.rank; ++j) before[j] *= op.hidden[long(r) * op.rank + j];
    for (int i = 0; i < op.k; ++i) {
      codes(op.successors, ids + i, after);
      float sum = 0;
      for (int j = 0; j < op.rank; ++j) sum += before[j] * after[j];
      candidates[i] = {ids[i], logprobs[i] + sum};
    }
    std::stable_sort(candidates, candidates + op.k, [](const auto& a, const auto& b) {
      return sampling::ordered(a.score) > sampling::ordered(b.score);  // NaN last
    });
    float sum = 0;
    for (int i = 0; i < op.k; ++i) sum += std::exp(candidates[i].score - candidates[0].score);
    for (int i = 0; i < op.k; ++i) {
      ids[i] = candidates[i].id;
      logprobs[i] = candidates[i].score - candidates[0].score - std::log(sum);
    }
    previous = ids;
  }
}

void CpuStream::run(const GrowTree& op) {
  LB_ASSERT(op.depth >= 1 && op.k >= 1 && op.k <= kMaxTopTokens);
  LB_ASSERT(op.max_rows >= 1 && op.max_rows <= kMaxTree && op.rows >= 1 && op.rows <= op.max_rows);
  for (int s = 0; s < op.sequences; ++s) {
    const long candidates = long(s) * op.depth * op.k, first = long(s) * op.max_rows;
    Draft draft;
    drafting::start(draft, op.root[s]);
    drafting::grow_tree({op.ids + candidates, op.logprobs + candidates, op.depth, op.k}, op.max_rows - 1, draft);
    op.n_rows[s] = draft.rows;
    std::copy_n(draft.tokens, draft.rows, op.tokens + first);
    std::copy_n(draft.parents, draft.rows, op.parents + first);
    std::copy_n(draft.depths, draft.rows, op.depths + first);
    std::copy_n(draft.scores, draft.rows, op.scores + first);
    std::copy_n(draft.ancestors, draft.rows, op.ancestors + first);
    for (int axis = 0; axis < 3; ++axis)
      for (int i = 0; i < std::min(op.rows, draft.rows); ++i)
        op.positions[(3L * s + axis) * op.rows + i] = op.n_past[s] + draft.depths[i];
  }
}

}  // namespace lb
