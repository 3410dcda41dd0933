// SessionProbe: a session's interface for benchmarks and tests: times of appends, passes and parts of steps, replayed
// drafts, and megakernel time stamps.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "dispatch/kernel_timer.h"
#include "engine/part_clock.h"
#include "engine/pass.h"
#include "engine/session.h"

namespace lb {

// Milliseconds of a speculative step while the host does not wait for tokens, and of each part's kernels, timed without
// overlap.
struct DraftStepTimes {
  double step_ms, draft_ms, tree_ms, verify_ms, walk_ms, commit_ms;
};

class SessionProbe {
 public:
  explicit SessionProbe(Session& session) : session_(session) {}

  // Simulates acceptance for weights whose drafts are never right. Of every sum(by_length) trees, by_length[n] trees
  // accept the first n tokens of their best path, or the complete path if it is shorter. Drafting, verifying and
  // sampling take their real time; the text is meaningless. Not for masked sampling. Empty: off.
  void replay(std::span<const int64_t> by_length, uint64_t seed);
  // Whether steps with drafts are timed part by part, which slows them down: part_seconds().
  void time_parts(bool on) { session_.speculator_.parts().set_on(on); }
  const PartClock::Seconds& part_seconds() const { return session_.speculator_.parts().seconds(); }

  // Seconds to compute a linear append and the logits of its last n_logits rows, without copying them to the host.
  double time_append(std::span<const int32_t> ids, int n_logits, const Interrupted& interrupted = {});
  // The work of time_append(), timed per kernel. Throws kUnsupported on the CPU.
  std::vector<gpu::KernelTime> profile_append(std::span<const int32_t> ids, int n_logits,
                                              const Interrupted& interrupted = {});
  // Pass::sync(), timed per kernel. Throws kUnsupported on the CPU.
  static std::vector<gpu::KernelTime> profile_together(std::span<const SegmentRequest> requests,
                                                       const Interrupted& interrupted = {});
  // Times steps of `rows` rows after ids: the mean of n steps, then one step part by part. The last of ids serves as
  // the root.
  DraftStepTimes time_draft_step(std::span<const int32_t> ids, int rows, int n);
  // Time stamps of the last decoded token's step; empty unless the megakernel computed it. Throws if the pack was built
  // without time stamps.
  StepTimeline step_timeline();
  // [ranks] of [vocab]: the newest token's logits as each rank of a model that is split by tensors has them.
  std::vector<std::vector<float>> rank_logits();

 private:
  using Work = std::function<void()>;
  // Calls `measure` with the append that time_append() and profile_append() time.
  void measure_append(std::span<const int32_t> ids, int n_logits, const std::function<void(const Work&)>& measure,
                      const Interrupted& interrupted);

  Session& session_;
};

}  // namespace lb
