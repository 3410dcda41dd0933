// Drafter: a source of drafts. It proposes a tree of tokens that may follow the newest one; the target decides every
// token. DrafterUnion: combines several drafters.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "ops/draft.h"

namespace lb {

struct DraftRequest {
  std::span<const int32_t> tokens;  // tokens of the sequence, excluding the root
  int n_unchanged;                  // leading tokens unchanged since the drafter's last request
  int32_t root;                     // the newest token, not yet computed
  int max_rows;                     // most rows of the tree, including the root
  int max_depth = std::numeric_limits<int>::max();
};

class Drafter {
 public:
  virtual ~Drafter() = default;
  // Starts a draft. False: nothing to propose.
  virtual bool start(const DraftRequest& request) = 0;
  // Returns the tree of the draft that start() began; waits for the device if there is one. At most max_rows rows,
  // which must not exceed the request's. Rows are in descending score, so that the first n rows are the best tree of n
  // rows. A score is the log probability of the row's path.
  virtual Draft tree(int max_rows) = 0;
};

// Merges the best paths of all drafters' trees. Every draft uses every drafter.
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
  // parents: as in Draft, except that -1 is the root. Throws kInvalid.
  void suggest(std::span<const int32_t> tokens, std::span<const int32_t> parents);
  bool is_empty() const { return tree_.rows == 0; }
  bool start(const DraftRequest& request) override;
  Draft tree(int max_rows) override;  // returns the suggestion once

 private:
  Draft tree_{};  // rows == 0: no suggestion
};

}  // namespace lb
