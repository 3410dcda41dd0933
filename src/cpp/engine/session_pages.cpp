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

// Calls work once pages [first, first + count) hold all their rows.
void Session::with_pages(int first, int count, const Work& work) {
  LB_CHECK(first >= 0 && count >= 1 && (first + count - 1) * kPageTokens < static_cast<int>(tokens_.size()), kInvalid,
           "pages ", first, " to ", first + count - 1, " reach beyond the ", tokens_.size(), " tokens of the timeline");
  check_idle();
  end_walk();
  empty_if_step_lost([&] {
    const std::lock_guard lock(engine_->executor().mutex);
    if (loop_ != nullptr) loop_->check();
    state_.swap_in();
    if (step_rows_) step_rows_->compute(tokens_);
    work();
  });
}

void Session::read_pages(int first, int count, std::span<std::byte> to) {
  with_pages(first, count, [&] { lb::read_pages(state_, first, count, to); });
}

std::unique_ptr<PageRun> Session::share_pages(int first, int count) {
  std::unique_ptr<PageRun> run;
  with_pages(first, count,
             [&] { run = std::make_unique<PageRun>(state_.pool(), state_.pages().subspan(first, count)); });
  return run;
}

}  // namespace lb
