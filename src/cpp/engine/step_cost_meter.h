// StepCostMeter: measures an engine's step costs on an empty session that does not draft yet.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "engine/session.h"
#include "sampling/sampler.h"
#include "speculation/step_costs.h"

namespace lb {

class StepCostMeter {
 public:
  // The session is empty, and is empty again after measure().
  explicit StepCostMeter(Session& session);
  StepCosts measure();
  // Milliseconds of a plain token.
  double measure_plain();

 private:
  using Work = std::function<void()>;
  // Milliseconds of the fastest of up to n runs. `before` runs ahead of each and is not timed.
  double time(int n, const Work& work, const Work& before = {});
  void restart();      // back to the start of the text
  void decode(int n);  // decodes n tokens
  double plain_ms();
  std::vector<StepCosts::Append> append_costs();
  double verify_ms(int rows);
  double step_ms(int rows);
  double draft_ms(int depth);
  void measure_drafts();

  Session& session_;
  Sampler greedy_;
  std::vector<int32_t> written_;
  StepCosts costs_;
};

}  // namespace lb
