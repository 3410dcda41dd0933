// A session's pages of the KV cache: taken ahead, swapped out to the host, shared with other sessions.
#include <algorithm>

#include "base/error.h"
#include "engine/session.h"

namespace lb {

bool Session::reserve(int n_tokens) {
  LB_CHECK(n_tokens <= context(), kInvalid, n_tokens, " tokens do not fit the context of ", context(),
           "; load the model with a larger context");
  check_idle();
  const std::lock_guard lock(engine_->executor().mutex);
  return state_.reserve(n_tokens);
}

void Session::swap_out() {
  LB_CHECK(appended_.empty(), kInvalid, "an append waits to be committed; swap out before or after it");
  if (is_swapped_out()) return;
  drop_step();
  const std::lock_guard lock(engine_->executor().mutex);
  state_.swap_out();
}

void Session::fork(Session& from) {
  LB_CHECK(engine_ == from.engine_, kInvalid, "these sessions are of different engines");
  LB_CHECK(from.appended_.empty(), kInvalid, "an append waits to be committed; fork before or after it");
  if (this == &from) return;
  from.drop_step();
  drop_step();
  const std::lock_guard lock(engine_->executor().mutex);
  state_.fork(from.state_);
  has_logits_ = false;
  tokens_ = from.tokens_;
  append_ends_ = from.append_ends_;
  appended_.clear();
  n_indexed_ = 0;
  if (width_) width_->start_sequence(loop_ == nullptr);
  if (!from.has_logits_) return;
  std::ranges::copy(from.logits(), logits_.begin());
  logits_in_ = LogitsIn::kHost;
  has_logits_ = true;
}

std::unique_ptr<PageRun> Session::share_pages(int first, int count) {
  check_pages(first, count);
  check_idle();
  end_walk();
  std::unique_ptr<PageRun> run;
  empty_if_step_lost([&] {
    const std::lock_guard lock(engine_->executor().mutex);
    if (loop_ != nullptr) loop_->check();
    state_.swap_in();
    if (step_rows_) step_rows_->compute(tokens_);
    run = std::make_unique<PageRun>(state_.pool(), state_.pages().subspan(first, count));
  });
  return run;
}

}  // namespace lb
