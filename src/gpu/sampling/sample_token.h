// Sampling a token: logit bias, mask, penalties, temperature, top-k, typical, top-p, min-p, one draw. The device twin
// of src/cpp/sampling/sampler.h. One cooperative launch: each block handles a slice of the vocabulary, and steps end at
// grid barriers.
//   adjust    x = logits after mask, bias, penalties and temperature; the first candidate in order. Greedy ends here.
//   filters   each keeps a prefix of an order of the candidates; radix_select() finds the prefix's end (search.h)
//   draw      sums of the kept weights per block; the block in which the draw falls finds the token
// Bound: latency of the grid barriers; 4 bytes per logit once, then x from L2.
#pragma once

#include "gpu/sampling/search.h"

namespace lb::gpu {

// A key that orders candidates: it is larger for a larger value, then for a lower id.
LB_DEVICE uint64_t key_of(float x, int id) { return uint64_t(ordered(x)) << 32 | ~uint32_t(id); }
LB_DEVICE int id_of(uint64_t key) { return int(~uint32_t(key)); }
LB_DEVICE float value_of(uint64_t key) { return from_ordered(uint32_t(key >> 32)); }
inline constexpr uint64_t kNotFiniteKey = ~uint64_t(0);  // above all other keys
LB_DEVICE uint64_t key_of(float logit, float adjusted, int id) {
  return logit - logit == 0 ? key_of(adjusted, id) : kNotFiniteKey;
}

// State shared by the steps.
struct Work {
  const Sample& op;
  const float* logits;  // [vocab] of the row being sampled
  SampleGrid& grid;
  float* x;                      // [vocab] adjusted logits
  const SampleOptions& options;  // a reference: a copy would fill the registers
  int begin, end;                // the block's slice
  int histogram;                 // index of the histogram to fill next
  uint64_t* scratch;

  // Each block publishes one value per SampleRow; after a grid barrier, all blocks read it. Each SampleRow is used once
  // per launch.
  LB_DEVICE uint64_t* row(SampleRow row) const { return grid.rows[int(row)]; }
  LB_DEVICE void publish(SampleRow to, uint64_t v) const {
    if (thread_id() == 0) row(to)[block_id()] = v;
  }
  LB_DEVICE uint64_t total(SampleRow of) const { return total_of(row(of), n_blocks(), scratch); }
  LB_DEVICE uint64_t largest(SampleRow of) const { return largest_of(row(of), n_blocks(), scratch); }

  template <class Amount>
  LB_DEVICE Rank end_of(const VocabSlice& slice, const Filters& filters, Order order, Amount amount) {
    return radix_select(slice, filters, order, amount, grid, histogram, scratch);
  }
  // The block's sum of f over the candidates of its slice.
  template <class F>
  LB_DEVICE uint64_t sum(const VocabSlice& slice, F f) const {
    uint64_t v = 0;
    for (int i = begin + thread_id(); i < end; i += n_threads()) v += f(slice.at(i));
    return block_total(v, scratch);
  }
};

LB_DEVICE bool has_penalties(const SampleOptions& o) {
  return o.repetition_penalty != 1 || o.frequency_penalty != 0 || o.presence_penalty != 0;
}

LB_DEVICE float adjusted(const Sample& op, const SampleOptions& o, float logit, int id) {
  if (o.has_mask && !allows(op.mask, id)) return -__builtin_inff();
  float x = o.has_bias ? biased(logit, op.bias[id]) : logit;
  if (has_penalties(o)) {
    const TokenCounts counts = op.counts[id];
    if (o.repetition_penalty != 1 && counts.in_window > 0) x = repeated(x, o.repetition_penalty);
    if (counts.generated > 0) x = counted(x, o.frequency_penalty, o.presence_penalty, counts.generated);
  }
  return !is_greedy(o.temperature) ? tempered(x, o.temperature) : x;
}

LB_DEVICE bool adjusts_by_token(const SampleOptions& o) { return o.has_mask || o.has_bias || has_penalties(o); }

LB_DEVICE void adjust(const Work& work, bool is_greedy, bool with_raw) {
  uint64_t best = 0, raw_best = 0;
  const auto see = [&](int i, float logit, float x) {
    best = larger(best, key_of(logit, x, i));
    raw_best = larger(raw_best, key_of(logit, i));
    if (!is_greedy) work.x[i] = x;
  };
  const int first = work.begin + thread_id();
  if (adjusts_by_token(work.options)) {
    for (int i = first; i < work.end; i += n_threads())
      see(i, work.logits[i], adjusted(work.op, work.options, work.logits[i], i));
  } else {  // eight loads per thread in flight
    constexpr int kInFlight = 8;
    const float temperature = work.options.temperature;
    LB_UNROLL_BY(1)
    for (int from = first; from < work.end; from += kInFlight * n_threads()) {
      float logits[kInFlight] = {};
      LB_UNROLL
      for (int k = 0; k < kInFlight; ++k)
        if (from + k * n_threads() < work.end) logits[k] = work.logits[from + k * n_threads()];
      LB_UNROLL
      for (int k = 0; k < kInFlight; ++k)
        if (from + k * n_threads() < work.end)
          see(from + k * n_threads(), logits[k], is_greedy ? logits[k] : tempered(logits[k], temperature));
    }
  }
  work.publish(SampleRow::kBest, block_largest(best, work.scratch));
  if (with_raw) work.publish(SampleRow::kRawBest, block_largest(raw_best, work.scratch));
}

// Mean distance of the kept candidates, weighted.
LB_DEVICE uint32_t mean_distance(const Work& work, const VocabSlice& slice, const Filters& filters) {
  WeightedDistances sum = {0, 0, 0};
  for (int i = work.begin + thread_id(); i < work.end; i += n_threads()) {
    const Candidate c = slice.at(i);
    if (keeps(filters, c)) add_to(sum, c.rank.coarse, c.weight);
  }
  work.publish(SampleRow::kDistancesHigh, block_total(sum.high, work.scratch));
  work.publish(SampleRow::kDistancesLow, block_total(sum.low, work.scratch));
  work.publish(SampleRow::kDistanceWeights, block_total(sum.weights, work.scratch));
  grid_barrier(&work.grid.barrier);
  sum.high = work.total(SampleRow::kDistancesHigh);
  sum.low = work.total(SampleRow::kDistancesLow);
  sum.weights = work.total(SampleRow::kDistanceWeights);
  return mean(sum);
}

LB_DEVICE uint64_t largest_weight(const Work& work, const VocabSlice& slice, const Filters& filters) {
  uint64_t own = 0;
  for (int i = work.begin + thread_id(); i < work.end; i += n_threads()) {
    const Candidate c = slice.at(i);
    if (keeps(filters, c)) own = larger(own, c.weight);
  }
  work.publish(SampleRow::kKeptLargest, block_largest(own, work.scratch));
  grid_barrier(&work.grid.barrier);
  return work.largest(SampleRow::kKeptLargest);
}

LB_DEVICE Filters make_filters(Work& work, const VocabSlice& slice) {
  const SampleOptions& o = work.options;
  Filters filters;
  if (o.top_k > 0 && o.top_k < work.op.vocab)
    filters.likely = work.end_of(slice, filters, Order::kLikely, CountOf{uint64_t(o.top_k)});
  if (o.typical_p < 1) {
    filters.mean = mean_distance(work, slice, filters);
    filters.typical = work.end_of(slice, filters, Order::kTypical, ShareOf{o.typical_p});
  }
  if (o.top_p < 1) {
    const Rank end = work.end_of(slice, filters, Order::kLikely, ShareOf{o.top_p});
    if (within(end, filters.likely)) filters.likely = end;
  }
  if (o.min_p > 0) {
    const bool has_likeliest = o.typical_p >= 1;
    filters.min_weight = share_of(has_likeliest ? kTopWeight : largest_weight(work, slice, filters), o.min_p);
  }
  return filters;
}

// Gathers the n largest raw logits, in any order.
LB_DEVICE void gather_top(Work& work, const VocabSlice& raw, int n) {
  Filters top;
  if (n < work.op.vocab) top.likely = work.end_of(raw, top, Order::kLikely, CountOf{uint64_t(n)});
  for (int i = work.begin + thread_id(); i < work.end; i += n_threads())
    if (keeps(top, raw.at(i))) work.grid.gathered[atomic_add(&work.grid.n_gathered, 1u)] = key_of(raw.x[i], i);
}

LB_DEVICE void write_top(const Work& work, int n, float log_total) {
  if (thread_id() >= n) return;
  const uint64_t key = work.grid.gathered[thread_id()];
  int rank = 0;
  for (int i = 0; i < n; ++i) rank += work.grid.gathered[i] > key;
  work.op.result->top_ids[rank] = id_of(key);
  work.op.result->top_logprobs[rank] = value_of(key) - log_total;
}

// The token selected by the draw, in the block that owns it; -1 in all other blocks.
LB_DEVICE int draw(const Work& work, const VocabSlice& slice, const Filters& filters, uint64_t uniform_number) {
  const uint64_t* block_weights = work.row(SampleRow::kKeptWeights);
  const uint64_t goal = scaled_draw(uniform_number, work.total(SampleRow::kKeptWeights)) + 1;
  const Crossing block =
      find_crossing(n_blocks(), work.scratch, [&](int i) { return block_weights[i]; }, [&](uint64_t) { return goal; });
  if (block.at != block_id()) return -1;
  const Crossing in_block = find_crossing(
      work.end - work.begin, work.scratch,
      [&](int i) {
        const Candidate c = slice.at(work.begin + i);
        return keeps(filters, c) ? c.weight : uint64_t(0);
      },
      [&](uint64_t) { return goal - block.before; });
  return work.begin + in_block.at;
}

LB_DEVICE void record(const Sample& op, const SampleOptions& o, int token) {
  const int n = op.state->n_tokens;
  op.history[n] = token;
  op.state->n_tokens = n + 1;
  if (!is_greedy(o.temperature)) op.state->draws += 1;
  op.counts[token].generated += 1;
  op.counts[token].in_window += 1;
  if (o.penalty_window >= 0 && n >= o.penalty_window) op.counts[op.history[n - o.penalty_window]].in_window -= 1;
}

LB_DEVICE int n_top_of(const Work& work) { return min(min(work.options.n_top, work.op.vocab), kMaxTopLogprobs); }

LB_DEVICE Work work_of(const SampleOnGrid& p, uint64_t* scratch) {
  return {p.op,
          p.op.logits,
          *p.grid,
          p.x,
          *p.op.options,
          int(long(p.op.vocab) * block_id() / n_blocks()),
          int(long(p.op.vocab) * (block_id() + 1) / n_blocks()),
          0,
          scratch};
}

// The first step, on the block's slice. A grid barrier must follow.
LB_DEVICE void adjust(const Work& work) {
  const bool is_greedy = sampling::is_greedy(work.options.temperature), with_raw = work.options.n_top >= 0;
  adjust(work, is_greedy, with_raw);
  if (is_greedy && !with_raw) return;
  clear_histogram(work.grid, 0);
  if (block_id() == 0 && thread_id() == 0) work.grid.n_gathered = 0;
}

// Returns false if sampling is impossible; is_writer then writes the problem to the result.
LB_DEVICE bool is_choosable(const Sample& op, uint64_t best, bool is_writer) {
  if (best != kNotFiniteKey && value_of(best) != -__builtin_inff()) return true;
  if (is_writer) {
    op.result->token = 0;
    op.result->problem = best == kNotFiniteKey ? SampleProblem::kNotFinite : SampleProblem::kAllForbidden;
  }
  return false;
}

// Runs all other steps. Returns true in the block that chose the token; its thread 0 has written the result.
LB_DEVICE bool choose(Work& work) {
  const Sample& op = work.op;
  const bool is_greedy = sampling::is_greedy(work.options.temperature);
  const int n_top = n_top_of(work);
  const bool with_logprobs = n_top >= 0;
  const uint64_t uniform_number = uniform(work.options.seed, op.state->draws);
  const uint64_t best = work.largest(SampleRow::kBest);
  if (!is_choosable(op, best, block_id() == 0 && thread_id() == 0)) return block_id() == 0;

  const VocabSlice slice{work.x, value_of(best), work.begin, work.end};
  Filters filters;
  if (!is_greedy) {
    filters = make_filters(work, slice);
    work.publish(SampleRow::kKeptWeights,
                 work.sum(slice, [&](const Candidate& c) { return keeps(filters, c) ? c.weight : uint64_t(0); }));
  }
  float raw_largest = 0;
  if (with_logprobs) {
    raw_largest = value_of(work.largest(SampleRow::kRawBest));
    const VocabSlice raw{work.logits, raw_largest, work.begin, work.end};
    if (n_top > 0) gather_top(work, raw, n_top);
    work.publish(SampleRow::kRawWeights, work.sum(raw, [](const Candidate& c) { return c.weight; }));
  }
  if (!is_greedy || with_logprobs) grid_barrier(&work.grid.barrier);

  float log_total = 0;
  if (with_logprobs) {
    log_total = raw_largest + log_fast(float(work.total(SampleRow::kRawWeights)) * 0x1p-40f);
    if (block_id() == 0) write_top(work, n_top, log_total);
  }
  const int token = !is_greedy ? draw(work, slice, filters, uniform_number) : block_id() == 0 ? id_of(best) : -1;
  if (token >= 0 && thread_id() == 0) {
    op.result->token = token;
    op.result->problem = SampleProblem::kNone;
    op.result->n_top = max(n_top, 0);
    if (with_logprobs) op.result->logprob = work.logits[token] - log_total;
    record(op, work.options, token);
  }
  return token >= 0;
}

// Every block of the grid must call it. row: which row of the logits. scratch: kScratch words of shared memory.
LB_DEVICE bool sample(const SampleOnGrid& p, int row, uint64_t* scratch) {
  Work work = work_of(p, scratch);
  work.logits += long(row) * p.op.vocab;
  adjust(work);
  grid_barrier(&work.grid.barrier);
  return choose(work);
}

}  // namespace lb::gpu
