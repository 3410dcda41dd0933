// Decoding with the sampler on the device: a step ends by choosing its token, which is the next step's input, so that
// the host only reads results. A place without one (the CPU) samples from logits on the host.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "sampling/sampler.h"

namespace lb {

// When a block of the megakernel began a step, had what it waited for and was done, in nanoseconds of one clock.
struct StepTime {
  int block, phase, task;
  uint64_t began, waited, done;
};

struct Timeline {
  std::vector<StepTime> steps;     // of all blocks
  std::vector<std::string> tasks;  // what they are
};

// A step began and never ended: what the sequence holds is unknown. The loop itself goes on.
struct StepLost : Error {
  using Error::Error;
};

// Whatever looks at what a step made may throw StepLost.
class TokenLoop {
 public:
  virtual ~TokenLoop() = default;

  // Starts choosing a token from these logits [vocab] of the host as `sampler` would.
  virtual void sample(const Sampler& sampler, std::span<const float> logits) = 0;
  // Starts a step with the token chosen last as its input, in the append of one row that the state has begun, and then
  // the choice of the next token by the same sampler.
  virtual void step() = 0;
  // The same without the choice, for which choose() then sends the mask: the host finds it while the device computes.
  virtual void step_only() = 0;
  virtual void choose(std::span<const uint32_t> mask) = 0;
  // Waits for the token chosen first of those not taken. Throws when its logits are not finite.
  virtual int32_t take() = 0;
  // Log probabilities of the token taken last; the sampler was made with n_top.
  virtual Logprobs logprobs(int n_top) const = 0;
  // Logits [vocab] of the step started last.
  virtual void download_logits(std::span<float> to) = 0;
  // Waits for the steps started.
  virtual void check() = 0;
  // How steps are run, where that is decided: for a graph when there has been one.
  virtual std::string name() const = 0;
  // Of the last step where it is a megakernel's, empty otherwise. Throws where its pack takes no stamps.
  virtual Timeline timeline() = 0;
  // Forgets choices not taken.
  virtual void drop() = 0;
};

}  // namespace lb
