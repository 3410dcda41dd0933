// A verified tree and the path that the sampler takes through it, from the root down.
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
  Draft& draft() { return draft_; }  // to be filled before begin()

  // The root is on the path: it was sampled before the tree was verified.
  void begin() {
    path_[0] = 0;
    n_path_ = 1;
  }
  void end() { n_path_ = 0; }
  int row() const { return path_[n_path_ - 1]; }  // of the node reached
  std::span<const int32_t> path() const { return {path_.data(), size_t(n_path_)}; }

  // The child of the node reached that holds the token; -1: the draft has none.
  int child(int32_t token) const {
    for (int i = row() + 1; i < draft_.rows; ++i)
      if (draft_.parents[i] == row() && draft_.tokens[i] == token) return i;
    return -1;
  }
  void descend(int child) { path_[n_path_++] = child; }

 private:
  Draft draft_{};
  std::array<int32_t, kMaxTree> path_{};
  int n_path_ = 0;
};

}  // namespace lb
