// TreeWalk: a verified tree and the path that the sampler takes through it, from the root down.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "ops/draft.h"

namespace lb {

class TreeWalk {
 public:
  bool is_active() const { return n_path_ > 0; }
  const Draft& draft() const { return draft_; }
  Draft& draft() { return draft_; }  // fill before begin()

  // The root is on the path: it was sampled before the tree was verified.
  void begin() {
    path_[0] = 0;
    n_path_ = 1;
  }
  void end() { n_path_ = 0; }

  // A replayed walk takes the first child of each node down to this depth, regardless of sampling, and ends there. -1:
  // the sampled tokens decide.
  void set_replay_depth(int depth) { replay_depth_ = depth; }
  // Rows of a replayed walk below `row`; below 0: the walk is not replayed.
  int replay_length(int row) const { return replay_depth_ < 0 ? -1 : replay_depth_ - draft_.depths[row]; }
  // The token that a replayed walk takes instead of the sampled one.
  int32_t replayed(int32_t sampled) const {
    if (draft_.depths[row()] >= replay_depth_) return sampled;
    for (int i = row() + 1; i < draft_.rows; ++i)
      if (draft_.parents[i] == row()) return draft_.tokens[i];
    return sampled;
  }

  int row() const { return path_[n_path_ - 1]; }  // of the current node
  std::span<const int32_t> path() const { return {path_.data(), size_t(n_path_)}; }

  // The child of the current node that holds the token; -1: none, or a replayed walk is at its end.
  int child(int32_t token) const {
    if (replay_depth_ >= 0 && draft_.depths[row()] >= replay_depth_) return -1;
    for (int i = row() + 1; i < draft_.rows; ++i)
      if (draft_.parents[i] == row() && draft_.tokens[i] == token) return i;
    return -1;
  }
  void descend(int child) { path_[n_path_++] = child; }

 private:
  Draft draft_{};
  std::array<int32_t, kMaxTree> path_{};
  int n_path_ = 0;
  int replay_depth_ = -1;
};

}  // namespace lb
