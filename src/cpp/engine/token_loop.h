// TokenLoop: decoding with the sampler on the device. A step ends by choosing a token, which is the next step's input,
// so the host only reads results. Without a token loop (on the CPU) the host samples from logits.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "ops/draft.h"
#include "ops/walk_tree.h"
#include "sampling/sampler.h"

namespace lb {

// Rows of a step. By row (Engine::decodes_by_row) an unused second row makes it a skinny GEMM, with the sums of passes.
inline constexpr int kMaxStepRows = 2;

// Times at which a megakernel block began a step, had its inputs and finished, in nanoseconds of one clock.
struct StepTime {
  int block, phase, task;  // task: index in StepTimeline::tasks
  uint64_t began, waited, done;
};

struct StepTimeline {
  std::vector<StepTime> steps;     // of all blocks
  std::vector<std::string> tasks;  // as text
};

// A step began and never ended, so the sequence's state is unknown. The loop itself remains usable.
struct StepLost : Error {
  using Error::Error;
};

// A row of logits [vocab] in the memory of each shard that computes logits, which all have the same values.
struct LogitsRow {
  std::span<float* const> rows;  // [shards] of many rows
  size_t offset = 0;             // of this row

  const float* on(int shard) const { return rows[shard] + offset; }
  const float* on_last() const { return rows.back() + offset; }
};

// A verified tree in a shard's memory.
struct VerifiedTree {
  const Draft* draft;
  const float* logits;  // [rows, vocab]
  int rows;             // rows of the draft that have logits
  int first;            // row at which the walk starts
  int replay_length;    // as in WalkTree
  AcceptPath accept;    // n_past null: the host commits the path
};

// Every function that reads a step's results may throw StepLost.
class TokenLoop {
 public:
  virtual ~TokenLoop() = default;

  // Starts choosing a token from logits, [vocab] on the host, as `sampler` would.
  virtual void sample(const Sampler& sampler, std::span<const float> logits) = 0;
  // [shards] of [vocab], unused while no step is pending: room for rows that other passes compute.
  virtual std::span<float* const> logits() const = 0;
  // Starts choosing a token from a row of logits in device memory. is_bound: the device already holds this sampler's
  // state, from the last choice.
  virtual void sample_row(const Sampler& sampler, const LogitsRow& logits, bool is_bound) = 0;
  // sample_row() for several loops of one engine, in as few launches as the kernels allow.
  struct RowChoice {
    TokenLoop* loop;
    const Sampler* sampler;
    LogitsRow logits;
    bool is_bound;
  };
  virtual void sample_rows(std::span<const RowChoice> choices) = 0;
  // Starts choosing the tokens of a walk down a tree: take() returns them one by one, up to the first token that is not
  // in the tree. trees: [shards] the same tree. The sampler has no mask.
  virtual void start_walk(const Sampler& sampler, std::span<const VerifiedTree> trees, bool is_bound) = 0;
  // Starts copying a tree of the last shard to the host. The copy is complete once take() returns a token chosen later.
  virtual void fetch(const Draft* tree) = 0;
  virtual const Draft& fetched() const = 0;
  // Sets the next step's input. Without it, the input is the last chosen token.
  virtual void enter(int32_t token) = 0;
  // Sets the position of the next step's input. Without it, the position is one after the previous choice's.
  virtual void place(int position) = 0;
  // Starts a step whose input is the last chosen token, then the choice of the next token with the same sampler. The
  // state must have begun an append of one row.
  virtual void step() = 0;
  // step() without the choice. The host computes the mask meanwhile; choose() then sends it.
  virtual void step_only() = 0;
  virtual void choose(std::span<const uint32_t> mask) = 0;
  // Waits for the oldest token not yet taken, if there is one. The caller need not have the turn.
  virtual void await() = 0;
  // Waits for the oldest token not yet taken and takes it. Throws when its logits are not finite.
  virtual int32_t take() = 0;
  // Log probabilities of the last token taken. Throws if the sampler was made for fewer than n_top.
  virtual Logprobs logprobs(int n_top) const = 0;
  // Logits [vocab] of the last step started.
  virtual void download_logits(std::span<float> to) = 0;
  // Waits for all steps that have been started.
  virtual void check() = 0;
  // How steps run: "graph" or the megakernel's schedule. Empty before the first graph.
  virtual std::string name() const = 0;
  // Time stamps of the last step, if the megakernel ran it; else empty. Throws if the pack was built without them.
  virtual StepTimeline timeline() = 0;
  // Waits for all steps, then drops all tokens not taken.
  virtual void drop() = 0;
};

}  // namespace lb
