#include "engine/decode.h"

#include <algorithm>

#include "base/error.h"

namespace lb {

Decode::Decode(Timeline& timeline, Speculator& speculator, TokenLoop* loop)
    : timeline_(timeline), speculator_(speculator), loop_(loop), logits_(timeline.engine().model().info().vocab) {}

void Decode::set(const Next& next) {
  next_ = next;
  revision_ = timeline_.revision();
}

int32_t Decode::sampled() const {
  if (const auto* state = std::get_if<Sampled>(&next_)) return state->token;
  if (const auto* state = std::get_if<StepPending>(&next_)) return state->token;
  if (const auto* state = std::get_if<TreePending>(&next_)) return state->token;
  if (const auto* state = std::get_if<TreeSampled>(&next_)) return state->token;
  return -1;
}

bool Decode::device_walks() const {
  const auto by_device = [](Walker walker) { return walker != Walker::kHost; };
  if (bound_ == 0) return false;
  if (const auto* state = std::get_if<TreePending>(&next_)) return by_device(state->walker);
  if (const auto* state = std::get_if<TreeSampled>(&next_)) return by_device(state->walker);
  const auto* state = std::get_if<TreeLogits>(&next_);
  return state != nullptr && by_device(state->walker) && state->choice == ChoiceState::kNone;
}

// Whether the device has chosen, or will choose, tokens that the host has not taken.
bool Decode::has_untaken_choice() const {
  if (bound_ == 0) return false;
  if (const auto* state = std::get_if<LoopLogits>(&next_)) return !state->waits_for_mask;
  if (const auto* state = std::get_if<RowLogits>(&next_)) return state->choice != ChoiceState::kNone;
  const auto* state = std::get_if<TreeLogits>(&next_);
  return device_walks() || (state != nullptr && state->choice != ChoiceState::kNone);
}

LogitsRow Decode::row_at(int row) const { return {speculator_.logits(), row * logits_.size()}; }

// --- the next token joins the timeline

bool Decode::follow(std::span<const int32_t> ids) {
  if (!timeline_.extends_by_one(ids)) return false;
  const int32_t token = ids.back();
  if (const auto* step = as<StepPending>()) {
    if (token != step->token) return false;
    const LoopLogits logits{step->waits_for_mask};
    timeline_.commit_step(token);
    set(logits);
    return true;
  }
  if (const auto* tree = as<TreePending>()) {
    if (token != tree->token) return false;
    speculator_.begin_walk();
    descend_to(0, tree->walker);
    return true;
  }
  return follow_tree(token);
}

bool Decode::verify_draft(std::span<const int32_t> ids, const Interrupted& interrupted) {
  if (as<StepPending>() || !timeline_.extends_by_one(ids)) return false;
  if (has_untaken_choice() || sampled() != ids.back()) drop_choices();
  leave_tree(true);
  return start_tree(ids.back(), false, interrupted) && follow(ids);
}

bool Decode::decode_row(std::span<const int32_t> ids) {
  if (loop_ == nullptr) return false;
  if (as<StepPending>()) rest();
  if (has_untaken_choice() || sampled() != ids.back()) drop_choices();
  leave_tree(true);
  {
    const std::lock_guard lock(timeline_.turn());
    loop_->enter(ids.back());
  }
  start_step(ids.back(), Timeline::NumbersFrom::kHost, true);
  return follow(ids);
}

void Decode::leave_for_pass(int32_t token) {
  if (as<StepPending>()) return rest();
  if (has_untaken_choice() || sampled() != token) drop_choices();
  leave_tree(true);
  set(Idle{});
}

void Decode::end_walk() {
  if (device_walks()) drop_choices();
  leave_tree(false);
}

void Decode::rest() {
  timeline_.check_idle();
  leave_tree(false);
  drop_choices();
  if (as<StepPending>()) timeline_.drop_step();
  if (as<StepPending>() || sampled() >= 0) set(Idle{});
  timeline_.settle_steps();
}

// --- logits

bool Decode::has_logits() const {
  const bool is_kind = std::holds_alternative<HostLogits>(next_) || std::holds_alternative<LoopLogits>(next_) ||
                       std::holds_alternative<RowLogits>(next_) || std::holds_alternative<TreeLogits>(next_);
  return is_kind && revision_ == timeline_.revision();
}

std::optional<LogitsRow> Decode::device_row() const {
  if (!has_logits()) return std::nullopt;
  if (const auto* row = std::get_if<RowLogits>(&next_)) return row->at;
  if (const auto* row = std::get_if<TreeLogits>(&next_)) return row_at(row->row);
  if (std::holds_alternative<LoopLogits>(next_)) return LogitsRow{loop_->logits()};
  return std::nullopt;
}

std::span<const float> Decode::logits() {
  LB_CHECK(has_logits(), kInvalid, "there are no logits; they exist between sync() and sample()");
  const auto download = [&](const float* from) {
    guard([&] {
      const std::lock_guard lock(timeline_.turn());
      if (from == nullptr) return loop_->download_logits(logits_);
      timeline_.stream().download(logits_.data(), from, logits_.size() * sizeof(float));
    });
  };
  const auto copy = [&](auto* state, const float* from) {
    if (state == nullptr || state->on_host) return;
    download(from);
    state->on_host = true;
  };
  copy(as<LoopLogits>(), nullptr);
  copy(as<RowLogits>(), as<RowLogits>() ? as<RowLogits>()->at.on_last() : nullptr);
  copy(as<TreeLogits>(), as<TreeLogits>() ? row_at(as<TreeLogits>()->row).on_last() : nullptr);
  return logits_;
}

void Decode::download_logits(const PassBuffers& buffers, int row) {
  timeline_.download_head(buffers, row, 1, logits_.data());
  set(HostLogits{});
}

void Decode::copy_logits(std::span<const float> logits) {
  std::ranges::copy(logits, logits_.begin());
  set(HostLogits{});
}

std::span<float* const> Decode::row_logits() const {
  if (!speculator_.logits().empty()) return speculator_.logits();
  return loop_ != nullptr ? loop_->logits() : std::span<float* const>();
}

void Decode::set_row_logits() {
  const auto rows = row_logits();
  rows.empty() ? set(HostLogits{}) : set(RowLogits{{rows}});
}

void Decode::set_tree_logits() {
  speculator_.begin_verified();
  descend_to(0, Walker::kHost);
}

// --- choices

int32_t Decode::sample(Sampler& sampler) {
  LB_CHECK(has_logits(), kInvalid, "there is nothing to sample from; call sync() first");
  if (loop_ == nullptr) return sample_on_host(sampler);
  return as<TreeLogits>() ? sample_in_tree(sampler) : sample_in_loop(sampler);
}

int32_t Decode::sample_on_host(Sampler& sampler) {
  speculator_.parts().start();
  const std::span<const float> from = logits();
  timeline_.check_finite(from, timeline_.tokens().size());
  const int32_t token = sampler.sample(from);
  if (!as<TreeLogits>()) return token;
  speculator_.parts().end(StepPart::kWalk);
  return speculator_.walk().replayed(token);
}

// Starts the next step before reading the token that is its input, so that the device never waits for the host. The
// token is read first in three cases: the first token, whose logits must survive a failed choice; a token after which
// the host must compute a mask; and the root of a draft. While drafts do not pay, no token waits for the host: the
// drafters run while the next step does, and decide for the token after that step.
int32_t Decode::sample_in_loop(Sampler& sampler) {
  using enum Timeline::NumbersFrom;
  const bool has_mask = !sampler.mask().empty();
  const bool follows_step = start_choice(sampler);
  const bool drafts_now =
      runs_ahead_ && (speculator_.has_suggestion() || (speculator_.is_on() && (!follows_step || drafts_pay_)));
  const bool is_early = runs_ahead_ && follows_step && !has_mask && !drafts_now;
  if (is_early) start_step(kUnread, kDevice, false);
  int32_t token;
  try {
    token = take();
  } catch (...) {
    if (is_early) abort_step();
    throw;
  }
  sampler.record(token);
  if (auto* step = as<StepPending>()) {
    step->token = token;
  } else {
    set(Sampled{token});
  }
  if (!runs_ahead_) return token;
  if (drafts_now) {
    start_next(sampler, token, false);
    return token;
  }
  if (!is_early) start_step(token, follows_step ? kDevice : kHost, has_mask);
  if (speculator_.is_on()) drafts_pay_ = speculator_.pays(token);
  return token;
}

// Returns true if the token is chosen from the newest step's logits by the sampler that the step used.
bool Decode::start_choice(const Sampler& sampler) {
  if (as<RowLogits>()) {
    const auto row = start_row_choice(sampler);
    const std::lock_guard lock(timeline_.turn());
    if (row) loop_->sample_rows({&*row, 1});
    return false;
  }
  auto* step = as<LoopLogits>();
  const bool follows_step = step != nullptr && bound_ == sampler.version();
  if (follows_step && !step->waits_for_mask) return true;
  const std::span<const float> from = follows_step ? std::span<const float>{} : logits();
  const std::lock_guard lock(timeline_.turn());
  if (follows_step) {
    loop_->choose(sampler.mask());
  } else {
    loop_->drop();
    loop_->sample(sampler, from);
    bound_ = sampler.version();
  }
  if (step != nullptr) step->waits_for_mask = false;
  return follows_step;
}

std::optional<TokenLoop::RowChoice> Decode::choice_of_row(const Sampler& sampler) {
  if (loop_ == nullptr || !has_logits() || runs_ahead_) return std::nullopt;
  if (as<TreeLogits>()) return start_choice_in_tree(sampler), std::nullopt;
  return as<RowLogits>() ? start_row_choice(sampler) : std::nullopt;
}

std::optional<TokenLoop::RowChoice> Decode::start_row_choice(const Sampler& sampler) {
  auto* row = as<RowLogits>();
  if (row->choice != ChoiceState::kNone && bound_ == sampler.version()) return std::nullopt;
  if (bound_ != sampler.version()) {
    const std::lock_guard lock(timeline_.turn());
    forget_sampler();
  }
  const bool is_bound = bound_ != 0;
  bound_ = sampler.version();
  row->choice = ChoiceState::kStarted;
  return TokenLoop::RowChoice{loop_, &sampler, row->at, is_bound};
}

Logprobs Decode::logprobs(int32_t token, int n_top) {
  LB_CHECK(token >= 0 && token < timeline_.engine().model().info().vocab, kInvalid, "token ", token,
           " is not in the vocabulary");
  if (has_logits()) return lb::logprobs(logits(), token, n_top);
  LB_CHECK(token == sampled(), kInvalid, "log probabilities exist only for the token sampled last, ", sampled(),
           ", not for ", token);
  return loop_->logprobs(n_top);
}

int32_t Decode::take() {
  int32_t token = 0;
  guard([&] { token = loop_->take(); });
  return token;
}

void Decode::wait_for_choice() {
  if (has_untaken_choice()) guard([&] { loop_->await(); });
}

// --- plain steps

// A step is an append of one row; follow() commits it or rest() rejects it.
void Decode::start_step(int32_t token, Timeline::NumbersFrom from, bool waits_for_mask) {
  guard([&] {
    const std::lock_guard lock(timeline_.turn());
    if (timeline_.room() == 0) return;  // the context is full, or the KV cache has no free page yet
    timeline_.begin_step(from);
    if (from == Timeline::NumbersFrom::kHost) loop_->place(timeline_.text_position(timeline_.state().n_tokens()));
    waits_for_mask ? loop_->step_only() : loop_->step();
    timeline_.end_step();
    set(StepPending{token, waits_for_mask});
  });
}

// The choice failed after the step that reads its token had started, so that step's progress is unknown.
void Decode::abort_step() {
  if (!as<StepPending>()) return;
  rest();
  timeline_.abort();
}

void Decode::start_next(const Sampler& sampler, int32_t token, bool has_draft) {
  const bool has_mask = !sampler.mask().empty();
  drafts_pay_ = start_tree(token, has_draft, {});
  if (!drafts_pay_) return start_step(token, Timeline::NumbersFrom::kHost, has_mask);
  if (has_mask) return;
  const std::lock_guard lock(timeline_.turn());
  as<TreePending>()->walker = walk_on_device(sampler, 0);
}

// Unbinds the device's sampler, because another one takes over. The caller holds the pass buffers' lock.
void Decode::forget_sampler() {
  loop_->drop();
  bound_ = 0;
}

// Drops the tokens that the device has chosen, and unbinds its sampler.
void Decode::drop_choices() {
  if (loop_ != nullptr && bound_ != 0)
    guard([&] {
      const std::lock_guard lock(timeline_.turn());
      loop_->drop();
    });
  bound_ = 0;
  if (auto* step = as<LoopLogits>()) step->waits_for_mask = false;
  if (auto* row = as<RowLogits>()) row->choice = ChoiceState::kNone;
  if (auto* tree = as<TreeLogits>()) tree->choice = ChoiceState::kNone;
}

void Decode::guard(const std::function<void()>& work) {
  try {
    work();
  } catch (const StepLost&) {
    lose();
    throw;
  }
}

void Decode::lose() {
  bound_ = 0;
  speculator_.drop();
  timeline_.lose();
  set(Idle{});
}

// --- trees

bool Decode::start_tree(int32_t root, bool has_draft, const Interrupted& interrupted) {
  if (!speculator_.propose(root, {.has_draft = has_draft, .may_grow = runs_ahead_})) return false;
  speculator_.verify(interrupted);
  set(TreePending{root, Walker::kHost});
  return true;
}

bool Decode::follow_tree(int32_t token) {
  Walker walker;
  if (const auto* tree = as<TreeSampled>()) {
    walker = tree->walker;
  } else if (const auto* row = as<TreeLogits>()) {
    walker = row->walker;
  } else {
    return false;
  }
  const bool is_sampled = token == sampled();
  if (walker == Walker::kDeviceAhead && !is_sampled) return false;
  speculator_.wait_for_tree();
  const int child = speculator_.walk().child(token);
  if (child < 0) return false;
  if (!is_sampled && has_untaken_choice()) {  // the device's choice differs from the caller's token
    drop_choices();
    walker = Walker::kHost;
  }
  speculator_.descend(child);
  descend_to(child, walker);
  return true;
}

// Adds the row's token to the timeline and makes the row's logits current.
void Decode::descend_to(int row, Walker walker) {
  timeline_.add_path_token(speculator_.walk().draft().tokens[row]);
  set(TreeLogits{row, walker});
}

// Commits the path of a walk. is_whole: the token after the path was not in the tree.
void Decode::leave_tree(bool is_whole) {
  const auto commit = [&](Walker walker) {
    speculator_.commit({.is_whole = is_whole, .draft_is_ahead = walker == Walker::kDeviceAhead});
  };
  if (const auto* tree = as<TreePending>()) {
    commit(tree->walker);
    set(Sampled{tree->token});
  } else if (const auto* inside = as<TreeSampled>()) {
    commit(inside->walker);
    set(Sampled{inside->token});
  } else if (const auto* row = as<TreeLogits>()) {
    commit(row->walker);
    set(RowLogits{row_at(row->row), row->choice, row->on_host});
  }
}

int32_t Decode::sample_in_tree(Sampler& sampler) {
  start_choice_in_tree(sampler);
  auto* row = as<TreeLogits>();
  const Walker walker = row->walker;
  const bool leaves = row->choice == ChoiceState::kLeavesTree;
  row->choice = ChoiceState::kNone;
  const int32_t token = take();
  sampler.record(token);
  set(TreeSampled{token, walker});
  speculator_.fetch_tree();
  if (!leaves && speculator_.walk().child(token) >= 0) return token;
  leave_tree(!leaves);
  if (runs_ahead_) start_next(sampler, token, walker == Walker::kDeviceAhead && !leaves);
  return token;
}

// Without a mask the device walks the tree alone and the host follows. If another sampler or a mask takes over after
// the device has drafted ahead, the next token leaves the tree.
void Decode::start_choice_in_tree(const Sampler& sampler) {
  auto& state = *as<TreeLogits>();
  const bool has_mask = !sampler.mask().empty(), is_bound = bound_ == sampler.version();
  if (is_bound && (state.choice != ChoiceState::kNone || (device_walks() && !has_mask))) return;
  const std::lock_guard lock(timeline_.turn());
  if (device_walks() || !is_bound) forget_sampler();  // the device's sampler state is of another path or sampler
  const bool leaves = state.walker == Walker::kDeviceAhead;
  if (has_mask || leaves) {
    choose_from_row(sampler, row_at(state.row));
    state.choice = leaves ? ChoiceState::kLeavesTree : ChoiceState::kStarted;
    if (!leaves) state.walker = Walker::kHost;
  } else {
    state.walker = walk_on_device(sampler, state.row);
    state.choice = ChoiceState::kNone;
  }
}

// Starts the device's walk from a row of the tree. The caller holds the pass buffers' lock.
Decode::Walker Decode::walk_on_device(const Sampler& sampler, int row) {
  const bool is_ahead = speculator_.can_draft_ahead(row);
  start_walk(sampler, row, is_ahead);
  if (!is_ahead) return Walker::kDevice;
  speculator_.draft_ahead();
  return Walker::kDeviceAhead;
}

void Decode::start_walk(const Sampler& sampler, int row, bool accepts_path) {
  speculator_.parts().start();
  loop_->start_walk(sampler, speculator_.verified_trees(row, accepts_path), bound_ == sampler.version());
  speculator_.parts().end(StepPart::kWalk);
  bound_ = sampler.version();
}

// Starts the device's choice of one token from a row. The caller holds the pass buffers' lock.
void Decode::choose_from_row(const Sampler& sampler, const LogitsRow& logits) {
  loop_->sample_row(sampler, logits, bound_ != 0);
  bound_ = sampler.version();
}

}  // namespace lb
