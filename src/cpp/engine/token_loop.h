// Decoding with the sampler on the device: a step ends by choosing its token, which is the next step's input, so the
// host only reads results. A backend without a token loop (the CPU) samples from logits on the host.
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

// When a block of the megakernel began a step, had its inputs and was done, in nanoseconds of one clock.
struct StepTime {
  int block, phase, task;  // task: index in StepTimeline::tasks
  uint64_t began, waited, done;
};

struct StepTimeline {
  std::vector<StepTime> steps;     // of all blocks
  std::vector<std::string> tasks;  // as text
};

// A step began and never ended, so the sequence's state is unknown. The loop itself can go on.
struct StepLost : Error {
  using Error::Error;
};

// A verified tree in device memory.
struct VerifiedTree {
  const Draft* draft;
  const float* logits;  // [rows, vocab]
  int rows;             // of the draft, that have logits
  int first;            // row whose logits decide first
  int replay_length;    // as in WalkTree
  AcceptPath accept;    // n_past null: the host commits the path
};

// Every function that reads what a step made may throw StepLost.
class TokenLoop {
 public:
  virtual ~TokenLoop() = default;

  // Starts choosing a token from logits, [vocab] on the host, as `sampler` would.
  virtual void sample(const Sampler& sampler, std::span<const float> logits) = 0;
  // [vocab] in device memory, free while no step is pending: for rows that other passes compute.
  virtual float* logits() = 0;
  // Starts choosing a token from a row of logits in device memory. is_bound: the sampler's state is that of the last
  // choice.
  virtual void sample_row(const Sampler& sampler, const float* logits, bool is_bound) = 0;
  // sample_row() for several loops of one engine, in as few launches as there are kernels for.
  struct RowChoice {
    TokenLoop* loop;
    const Sampler* sampler;
    const float* logits;
    bool is_bound;
  };
  virtual void sample_rows(std::span<const RowChoice> choices) = 0;
  // Starts choosing the tokens of a walk down a tree: take() returns one after another, up to the first that the tree
  // does not hold. The sampler has no mask.
  virtual void start_walk(const Sampler& sampler, const VerifiedTree& tree, bool is_bound) = 0;
  // Starts copying a tree to the host. It is there once a token is taken that is chosen later.
  virtual void fetch(const Draft* tree) = 0;
  virtual const Draft& fetched() const = 0;
  // Sets the position of the next step's input, which otherwise follows the choice before.
  virtual void place(int position) = 0;
  // Starts a step whose input is the token chosen last, then the choice of the next token by the same sampler. The
  // state has begun an append of one row.
  virtual void step() = 0;
  // As step() without the choice; choose() then sends the mask, which the host computes meanwhile.
  virtual void step_only() = 0;
  virtual void choose(std::span<const uint32_t> mask) = 0;
  // Waits for the oldest token not yet taken. Throws when its logits are not finite.
  virtual int32_t take() = 0;
  // Log probabilities of the token taken last. Throws where the sampler was made for fewer than n_top.
  virtual Logprobs logprobs(int n_top) const = 0;
  // Logits [vocab] of the step started last.
  virtual void download_logits(std::span<float> to) = 0;
  // Waits for all steps started.
  virtual void check() = 0;
  // How steps run: "graph" or the megakernel's schedule. Empty before the first graph.
  virtual std::string name() const = 0;
  // Time stamps of the last step, if the megakernel ran it; else empty. Throws where the pack was built without them.
  virtual StepTimeline timeline() = 0;
  // Waits, then drops all tokens not taken.
  virtual void drop() = 0;
};

}  // namespace lb
