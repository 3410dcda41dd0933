// Sampling: on the host from logits, or on the device by the token loop, which runs a step ahead of the host.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "engine/session.h"

namespace lb {

std::span<const float> Session::logits() {
  LB_CHECK(has_logits_, kInvalid, "there are no logits; they exist between sync() and sample()");
  if (logits_in_ == LogitsIn::kHost) return logits_;
  empty_if_step_lost([&] {
    const std::lock_guard lock(engine_->executor().mutex);
    if (logits_in_ == LogitsIn::kLoop) return loop_->download_logits(logits_);
    state_.stream().download(logits_.data(), row_logits_, logits_.size() * sizeof(float));
  });
  const bool is_device_row = loop_ != nullptr && logits_in_ == LogitsIn::kRow;  // from which the device will choose
  if (!is_device_row) logits_in_ = LogitsIn::kHost;
  return logits_;
}

int32_t Session::sample(Sampler& sampler) {
  LB_CHECK(has_logits_, kInvalid, "there is nothing to sample from; call sync() first");
  if (loop_ != nullptr) return walk_.is_active() ? sample_in_tree(sampler) : sample_in_loop(sampler);
  parts_.start();
  const std::span<const float> from = logits();
  check_finite(from, tokens_.size());
  const int32_t token = sampler.sample(from);
  if (!walk_.is_active()) return token;
  parts_.end(StepPart::kWalk);
  return walk_.replayed(token);
}

void Session::check_finite(std::span<const float> logits, size_t n_tokens) const {
  const bool finite = std::ranges::all_of(logits, [](float logit) { return std::isfinite(logit); });
  LB_CHECK(finite, kFormat, engine_->file().path, ": the logits after ", n_tokens,
           " tokens are not finite; the weights are damaged or overflow");
}

// Starts the step that takes the token as input before reading the token, so that the device never waits for the host.
// Three exceptions read the token first: the first one, whose logits must survive a failed choice, a token after
// which the host has to compute a mask, and the root of a draft. While drafts do not pay, no token waits for the host:
// the drafter is asked while the next step runs, and its answer is for the token after that step.
int32_t Session::sample_in_loop(Sampler& sampler) {
  const bool is_first = loop_sampler_ != sampler.version(), has_mask = !sampler.mask().empty();
  if (logits_in_ == LogitsIn::kRow) {
    const Choice choice{this, &sampler};
    start_samples({&choice, 1});
  } else if (is_first) {
    const std::span<const float> from = logits();
    const std::lock_guard lock(engine_->executor().mutex);
    loop_->drop();
    loop_->sample(sampler, from);
    loop_sampler_ = sampler.version();
  } else if (choice_waits_for_mask_) {
    const std::lock_guard lock(engine_->executor().mutex);
    loop_->choose(sampler.mask());
  }
  choice_waits_for_mask_ = false;
  was_masked_ = has_mask;
  const bool drafts_now = runs_ahead_ && (suggested_.rows > 0 || (drafts() && (is_first || drafts_pay_)));
  const bool is_early = runs_ahead_ && !is_first && !has_mask && !drafts_now;
  if (is_early) start_step(NumbersFrom::kDevice, has_mask);
  try {
    empty_if_step_lost([&] { sampled_ = loop_->take(); });
  } catch (...) {
    if (is_early) abort_step();
    throw;
  }
  choice_started_ = false;
  sampler.record(sampled_);
  has_logits_ = false;
  if (!runs_ahead_) return sampled_;
  if (drafts_now) {
    start_next(sampler, false);
    return sampled_;
  }
  if (!is_early) start_step(is_first ? NumbersFrom::kHost : NumbersFrom::kDevice, has_mask);
  if (drafts()) drafts_pay_ = wants_draft();
  return sampled_;
}

Logprobs Session::logprobs(int32_t token, int n_top) {
  LB_CHECK(token >= 0 && token < engine_->model().info().vocab, kInvalid, "token ", token, " is not in the vocabulary");
  if (has_logits_) return lb::logprobs(logits(), token, n_top);
  LB_CHECK(token == sampled_, kInvalid, "log probabilities exist only for the token sampled last, ", sampled_,
           ", not for ", token);
  return loop_->logprobs(n_top);
}

Timeline Session::timeline() {
  if (loop_ == nullptr) return {};
  const std::lock_guard lock(engine_->executor().mutex);
  return loop_->timeline();
}

// A step is an append of one row; sync() commits it or drop_step() rejects it.
void Session::start_step(NumbersFrom from, bool waits_for_mask) {
  has_logits_ = false;
  empty_if_step_lost([&] {
    const std::lock_guard lock(engine_->executor().mutex);
    if (state_.room() == 0) return;  // no token can follow in this context, or none yet in the KV cache
    if (step_rows_ && step_rows_->is_full()) step_rows_->compute(tokens_);
    state_.reach_ahead();
    if (from == NumbersFrom::kDevice) {
      state_.begin_next();
    } else {
      state_.begin_append(1, {});
      loop_->place(state_.n_tokens());
    }
    if (step_rows_) step_rows_->begin_step();
    waits_for_mask ? loop_->step_only() : loop_->step();
    state_.end_append();
    step_pending_ = true;
    choice_waits_for_mask_ = waits_for_mask;
  });
}

bool Session::adopt_step(std::span<const int32_t> ids) {
  if (!step_pending_ || ids.size() != tokens_.size() + 1 || ids.back() != sampled_ ||
      !std::equal(tokens_.begin(), tokens_.end(), ids.begin()))
    return false;
  state_.commit_chain(1);
  add_tokens({&sampled_, 1});
  sampled_ = -1;
  step_pending_ = false;
  has_logits_ = true;
  logits_in_ = LogitsIn::kLoop;
  return true;
}

void Session::drop_step() {
  check_idle();
  end_walk();
  drop_choices();
  choice_waits_for_mask_ = false;
  if (step_pending_ || sampled_ >= 0) has_logits_ = false;
  if (step_pending_) state_.commit_chain(0);
  sampled_ = -1;
  step_pending_ = false;
  if (step_rows_ && step_rows_->is_behind()) {
    const std::lock_guard lock(engine_->executor().mutex);
    settle_step_rows();
  }
}

void Session::settle_step_rows() {
  if (step_rows_) step_rows_->settle(tokens_);
}

// Another sampler chooses from now on. The caller holds the executor's lock.
void Session::forget_sampler() {
  loop_->drop();
  loop_sampler_ = 0;
  choice_started_ = false;
}

// Drops the tokens that the device has chosen, and its sampler's state.
void Session::drop_choices() {
  if (loop_ != nullptr && loop_sampler_ != 0)
    empty_if_step_lost([&] {
      const std::lock_guard lock(engine_->executor().mutex);
      loop_->drop();
    });
  loop_sampler_ = 0;
  choice_started_ = false;
}

// The choice of a token failed after its step had started: how far the step came is unknown.
void Session::abort_step() {
  if (!step_pending_) return;
  drop_step();
  state_.abort_append();
  truncate_tokens(state_.n_tokens());
}

// Runs work that looks at the results of steps. A lost step leaves the state unknown: the timeline is emptied.
void Session::empty_if_step_lost(const Work& work) {
  try {
    work();
  } catch (const StepLost&) {
    empty_timeline();
    throw;
  }
}

void Session::empty_timeline() {
  const std::lock_guard lock(engine_->executor().mutex);
  loop_sampler_ = 0;
  choice_started_ = false;
  sampled_ = -1;
  choice_waits_for_mask_ = step_pending_ = has_logits_ = false;
  walk_.end();
  tree_pending_ = draft_is_ahead_ = false;
  appended_.clear();
  state_.abort_append();
  state_.rewind(0);
  if (step_rows_) step_rows_->reset();
  truncate_tokens(0);
}

}  // namespace lb
