#include "speculation/drafter.h"

#include <algorithm>

#include "base/error.h"
#include "ops/draft_rules.h"
#include "speculation/merge.h"

namespace lb {

bool DrafterUnion::start(const DraftRequest& request) {
  tree_.rows = 0;
  for (const auto& drafter : drafters_)
    if (drafter->start(request)) {
      const Draft tree = drafter->tree(request.max_rows);
      tree_ = tree_.rows == 0 ? tree : merge(tree_, tree, request.max_rows);
    }
  return tree_.rows > 1;
}

void SuggestedDraft::suggest(std::span<const int32_t> tokens, std::span<const int32_t> parents) {
  LB_CHECK(tokens.size() == parents.size() && tokens.size() < kMaxTree, kInvalid, "a draft has at most ", kMaxTree - 1,
           " tokens and a parent each; got ", tokens.size(), " and ", parents.size());
  tree_.rows = 0;
  if (tokens.empty()) return;
  Draft tree{};
  drafting::start(tree, 0);  // start() sets the root's token
  for (size_t i = 0; i < tokens.size(); ++i) {
    LB_CHECK(parents[i] >= -1 && parents[i] < static_cast<int32_t>(i), kInvalid, "token ", i,
             " of the draft has parent ", parents[i], "; a parent comes before its children, -1 is the next token");
    drafting::add(tree, tokens[i], parents[i] + 1, 0);
  }
  tree_ = tree;
}

bool SuggestedDraft::start(const DraftRequest& request) {
  if (is_empty()) return false;
  tree_.tokens[0] = request.root;
  return true;
}

Draft SuggestedDraft::tree(int max_rows) {
  Draft tree = tree_;
  tree_.rows = 0;
  tree.rows = std::min(tree.rows, max_rows);
  return tree;
}

}  // namespace lb
