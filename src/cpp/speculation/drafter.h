// Drafter: a source of drafts. It proposes a tree of tokens that may follow the newest one; the target decides every
// token. DrafterUnion: several drafters as one.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "ops/draft.h"

namespace lb {

struct DraftRequest {
  std::span<const int32_t> tokens;  // of the sequence, before the root
  int n_unchanged;                  // leading tokens that were the same in the drafter's last request
  int32_t root;                     // the newest token, which is not computed yet
  int max_rows;                     // of the tree, the root included
  int max_depth = std::numeric_limits<int>::max();
};

class Drafter {
 public:
  virtual ~Drafter() = default;
  // Starts a draft. False: there is nothing to propose.
  virtual bool start(const DraftRequest& request) = 0;
  // The tree of the draft that start() began, on the host: it waits for a device. At most max_rows rows, no more than
  // were requested. By descending score, so that the first n rows are the best tree of n rows; a score is the logarithm
  // of the path's probability.
  virtual Draft tree(int max_rows) = 0;
};

// The best paths of the drafters' trees. Each drafter is asked for every draft.
class DrafterUnion final : public Drafter {
 public:
  void add(std::unique_ptr<Drafter> drafter) { drafters_.push_back(std::move(drafter)); }
  bool start(const DraftRequest& request) override;
  Draft tree(int) override { return tree_; }

 private:
  std::vector<std::unique_ptr<Drafter>> drafters_;
  Draft tree_{};
};

// A tree that the caller suggests for the next root.
class SuggestedDraft final : public Drafter {
 public:
  // parents: as in Draft but for the root, which is -1. Throws kInvalid.
  void suggest(std::span<const int32_t> tokens, std::span<const int32_t> parents);
  bool is_empty() const { return tree_.rows == 0; }
  bool start(const DraftRequest& request) override;
  Draft tree(int max_rows) override;  // once

 private:
  Draft tree_{};  // rows == 0: none
};

}  // namespace lb
