// The selector of DFlash 2:
//   score[i] = logprobs[r,i] + sum_j predecessors[previous, j] hidden[r,j] successors[ids[r,i], j]
//
// The previous token is one of the previous row's k candidates. select_scores_kernel, a block per row, therefore scores
// each candidate of the row after each of the previous row's candidates, for all rows in parallel. Then
// select_candidates_kernel, one block, walks down the rows: one warp, a lane per candidate.
// Bound: latency. The tables contribute 2 k rank values per row.
#include "dialect.h"

#include "gpu/draft/shape.h"
#include "gpu/elementwise/embed_row.h"
#include "ops/append.h"
#include "ops/sample_rules.h"

namespace lb::gpu {

LB_KERNEL(select_scores_kernel, ScoredCandidates, kSelectThreads, 1) {
  const SelectCandidates& op = p.op;
  float* before = dynamic_shared<float>();  // [k, rank] predecessors times hidden
  float* after = before + op.k * op.rank;   // [k, rank] successors
  wait_for_previous();
  dependents_may_launch();
  const int row = block_id(), n_before = row == 0 ? 1 : op.k;
  const float* hidden = op.hidden + long(row) * op.rank;
  const int32_t* ids = op.ids + long(row) * op.k;
  const int32_t* before_ids = row == 0 ? op.root : ids - op.k;
  for (int i = warp(); i < n_before + op.k; i += n_warps()) {
    const bool is_before = i < n_before;
    const Embed table = {.table = is_before ? op.predecessors : op.successors,
                         .type = op.type,
                         .ids = is_before ? before_ids + i : ids + i - n_before,
                         .y = nullptr,
                         .rows = 1,
                         .dim = op.rank,
                         .vocab = op.vocab};
    float* to = (is_before ? before + i * op.rank : after + (i - n_before) * op.rank);
    embed_row(table, 0, lane(), 32, [&](int j, float value) { store(to + j, is_before ? value * hidden[j] : value); });
  }
  block_barrier();
  for (int pair = warp(); pair < n_before * op.k; pair += n_warps()) {
    const float* a = before + pair / op.k * op.rank;
    const float* b = after + pair % op.k * op.rank;
    float sum = 0;
    for (int j = lane(); j < op.rank; j += 32) sum = fma(load<float>(a + j), load<float>(b + j), sum);
    sum = warp_sum(sum);
    if (lane() == 0) p.scores[long(row) * op.k * op.k + pair] = op.logprobs[long(row) * op.k + pair % op.k] + sum;
  }
}

LB_KERNEL(select_candidates_kernel, ScoredCandidates, kSelectThreads, 1) {
  LB_SHARED(float, scores, kMaxTree * kMaxTopTokens * kMaxTopTokens);
  const SelectCandidates& op = p.op;
  wait_for_previous();
  dependents_may_launch();
  for (int i = thread_id(); i < op.rows * op.k * op.k; i += n_threads()) scores[i] = p.scores[i];
  block_barrier();
  if (warp() > 0) return;
  const bool is_candidate = lane() < op.k;
  int previous = 0;  // index of the chosen candidate in the previous row
  for (int row = 0; row < op.rows; ++row) {
    const int at = row * op.k + lane();
    const int32_t id = is_candidate ? op.ids[at] : 0;
    float score = -__builtin_inff();
    if (is_candidate) score = scores[(row * op.k + previous) * op.k + lane()];
    const uint32_t own = sampling::ordered(score);
    int rank = 0;  // number of candidates that precede this one
    for (int i = 0; i < op.k; ++i) {
      const uint32_t other = shuffle(own, i);
      rank += other > own || (other == own && i < lane());
    }
    previous = warp_min(is_candidate && rank == 0 ? lane() : 32);
    const float largest = shuffle(score, previous);
    const float sum = warp_sum(is_candidate ? exp_fast(score - largest) : 0.0f);
    if (is_candidate) {
      op.ids[row * op.k + rank] = id;
      op.logprobs[row * op.k + rank] = score - largest - log_fast(sum);
    }
  }
}

}  // namespace lb::gpu
