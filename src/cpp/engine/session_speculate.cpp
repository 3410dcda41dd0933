// Speculation: a tree of drafted tokens is verified in one append, and the sampler walks it. Each token is drawn from
// the target's own logits after the tokens before it, so a draft changes how much is computed at once, not the text.
#include <algorithm>

#include "base/error.h"
#include "engine/session.h"

namespace lb {

bool Session::drafts() const { return suggested_.rows > 0 || drafting_; }

bool Session::extends_by_one(std::span<const int32_t> ids) const {
  return !tokens_.empty() && ids.size() == tokens_.size() + 1 &&
         std::equal(tokens_.begin(), tokens_.end(), ids.begin());
}

void Session::suggest(std::span<const int32_t> tokens, std::span<const int32_t> parents) {
  check_ids(tokens);
  LB_CHECK(tree_logits_ != nullptr, kUnsupported, "the engine was opened without speculation");
  LB_CHECK(tokens.size() == parents.size() && tokens.size() < kMaxTree, kInvalid, "a draft has at most ", kMaxTree - 1,
           " tokens and a parent each; got ", tokens.size(), " and ", parents.size());
  suggested_.rows = 0;
  if (tokens.empty()) return;
  suggested_.start(0);  // the root's token is not known yet
  for (size_t i = 0; i < tokens.size(); ++i) {
    LB_CHECK(parents[i] >= -1 && parents[i] < static_cast<int32_t>(i), kInvalid, "token ", i,
             " of the draft has parent ", parents[i], "; a parent comes before its children, -1 is the next token");
    suggested_.add(tokens[i], parents[i] + 1, 0);
  }
}

bool Session::follow_tree(std::span<const int32_t> ids) {
  if (!walk_.is_active() || !extends_by_one(ids)) return false;
  if (!walk_.descend(ids.back())) {
    end_walk();
    return false;
  }
  draft_counts_.accepted += 1;
  tokens_.push_back(ids.back());
  has_logits_ = true;
  logits_in_ = LogitsIn::kTree;
  tree_row_ = walk_.row();
  sampled_ = -1;
  return true;
}

bool Session::propose(int32_t root, int max_rows) {
  Draft& draft = walk_.draft();
  if (suggested_.rows > 0) {
    draft = suggested_;
    suggested_.rows = 0;
    draft.tokens[0] = root;
    draft.rows = std::min(draft.rows, max_rows);
  } else {
    draft.rows = 0;
  }
  return draft.rows > 1;
}

bool Session::verify_draft(std::span<const int32_t> ids, const Interrupted& interrupted) {
  if (!drafts() || step_pending_ || !extends_by_one(ids)) return false;
  const int n_past = state_.n_tokens();
  if (!propose(ids.back(), std::min(engine_->options().tree_rows(), state_.capacity() - n_past))) return false;
  const Draft& draft = walk_.draft();
  const std::lock_guard lock(engine_->executor().mutex);
  for (int axis = 0; axis < 3; ++axis)
    for (int r = 0; r < draft.rows; ++r) positions_[axis * draft.rows + r] = n_past + draft.depths[r];
  has_logits_ = false;
  forward({draft.tokens, size_t(draft.rows)}, {positions_.data(), 3 * size_t(draft.rows)},
          {draft.parents, draft.ancestors}, interrupted, nullptr);
  head(0, draft.rows, tree_logits_);
  walk_.begin();
  draft_counts_.verified += 1;
  draft_counts_.drafted += draft.rows - 1;
  tokens_.push_back(ids.back());
  has_logits_ = true;
  logits_in_ = LogitsIn::kTree;
  tree_row_ = 0;
  sampled_ = -1;
  return true;
}

void Session::end_walk() {
  if (!walk_.is_active()) return;
  const std::lock_guard lock(engine_->executor().mutex);
  state_.commit(walk_.path());
  draft_counts_.by_length[walk_.path().size() - 1] += 1;
  walk_.end();
}

// The device chooses from the row's logits; no step begins, as the tree may hold the token's logits too.
int32_t Session::sample_in_tree(Sampler& sampler) {
  {
    const std::lock_guard lock(engine_->executor().mutex);
    const bool is_bound = loop_sampler_ == sampler.version();
    if (!is_bound) loop_->drop();
    loop_->sample_row(sampler, tree_logits_ + tree_row_ * logits_.size(), static_cast<int>(tokens_.size()), is_bound);
    loop_sampler_ = sampler.version();
  }
  was_masked_ = !sampler.mask().empty();
  empty_if_step_lost([&] { sampled_ = loop_->take(); });
  sampler.record(sampled_);
  has_logits_ = false;
  return sampled_;
}

}  // namespace lb
