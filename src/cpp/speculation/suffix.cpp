#include "speculation/suffix.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.h"
#include "ops/draft_rules.h"

namespace lb {
namespace {

constexpr int kOccurrences = 64;  // the newest occurrences, from which probabilities are estimated
// Lower bound of a path's probability. The discount below keeps trees of short matches small, and DraftPlanner drops
// rows that do not pay. In simulated decoding of code, 0.02 is 6 to 16 % faster than 0.1 with at most 2 nodes for each
// matched token.
constexpr double kMinProbability = 0.02;

using Positions = std::array<int64_t, kOccurrences>;

// A node that may join the tree; the occurrences [first, last) pass through it.
struct Candidate {
  double probability;
  int32_t token, parent;
  int first, last;
};

// Grows the tree of what followed the occurrences, likeliest path first. An occurrence is the position of the match's
// last token. P(child) = P(parent) * (count(child) - 2 / (2 + context)) / count(parent). The discount reflects how
// little one occurrence of a short context proves: 2/3 after 1 token, 1/5 after 8, 1/33 after 64. In this project's own
// code, read token by token, a token that followed a context once follows again with probability 0.4 after 2 tokens
// (the formula: 0.5), 0.68 after 5 to 8 (0.76) and 0.95 after more than 32 (0.96).
class Growth {
 public:
  // repeats: predicts the continuation of the indexed text itself. An occurrence that reaches the end of the text then
  // continues like an overlapping LZ77 copy: it repeats the tokens since the occurrence.
  Growth(const ContextIndex& index, bool repeats, const Positions& positions, const ContextIndex::Match& match)
      : index_(index), repeats_(repeats), match_(match.length) {
    for (int i = 0; i < match.n; ++i) occurrences_[i] = {positions[i], i, 0};
    n_ = match.n;
  }

  SuffixDraft grow(int32_t root, int max_rows, SuffixSource source) {
    SuffixDraft draft{.match = match_, .source = source};
    drafting::start(draft.tree, root);
    expand({.probability = 1, .token = root, .parent = -1, .first = 0, .last = n_}, 0, 0);
    while (draft.tree.rows < std::min(max_rows, kMaxTree) && n_candidates_ > 0) {
      const Candidate best = take_best();
      const float score = static_cast<float>(std::log(best.probability));
      const int row = drafting::add(draft.tree, best.token, best.parent, score);
      draft.accepted += best.probability;
      expand(best, row, draft.tree.depths[row]);
    }
    if (draft.tree.rows == 1) return {};
    return draft;
  }

 private:
  struct Occurrence {
    int64_t position;
    int age;        // 0: the newest
    int32_t token;  // next token at the current depth
  };

  int32_t following(int64_t position, int depth) const {
    int64_t at = position + 1 + depth;
    if (repeats_ && at >= index_.end()) at = position + 1 + depth % (index_.end() - 1 - position);
    return index_.token(at);
  }

  // Sorts the node's occurrences by the next token; each token becomes a candidate.
  void expand(const Candidate& node, int row, int depth) {
    const auto first = occurrences_.begin() + node.first, last = occurrences_.begin() + node.last;
    for (auto at = first; at != last; ++at) at->token = following(at->position, depth);
    const auto is_before = [](const Occurrence& a, const Occurrence& b) {
      return a.token != b.token ? a.token < b.token : a.age < b.age;
    };
    if (!std::is_sorted(first, last, is_before)) std::sort(first, last, is_before);
    const double scale = node.probability / (node.last - node.first), discount = 2.0 / (2 + match_ + depth);
    for (int i = node.first; i < node.last;) {
      int end = i + 1;
      while (end < node.last && occurrences_[end].token == occurrences_[i].token) ++end;
      const double probability = scale * (end - i - discount);
      if (occurrences_[i].token != ContextIndex::kGap && probability >= kMinProbability)
        candidates_[n_candidates_++] = {probability, occurrences_[i].token, row, i, end};
      i = end;
    }
  }

  // Ties: the lower parent row, then the newer occurrence.
  Candidate take_best() {
    const auto is_worse = [this](const Candidate& a, const Candidate& b) {
      if (a.probability != b.probability) return a.probability < b.probability;
      if (a.parent != b.parent) return a.parent > b.parent;
      return occurrences_[a.first].age > occurrences_[b.first].age;
    };
    const auto best = std::max_element(candidates_.begin(), candidates_.begin() + n_candidates_, is_worse);
    const Candidate taken = *best;
    *best = candidates_[--n_candidates_];
    return taken;
  }

  const ContextIndex& index_;
  bool repeats_;
  int match_, n_ = 0, n_candidates_ = 0;
  std::array<Occurrence, kOccurrences> occurrences_;
  std::array<Candidate, kOccurrences> candidates_;  // with disjoint occurrences
};

}  // namespace

EarlierOutputs::EarlierOutputs(int capacity) : index_(capacity) {
  LB_CHECK(capacity >= 2 * ContextIndex::kMaxContext, kInvalid, "earlier outputs need room for at least ",
           2 * ContextIndex::kMaxContext, " tokens, not ", capacity);
}

void EarlierOutputs::add(std::span<const int32_t> output) {
  if (output.empty()) return;
  const std::lock_guard lock(mutex_);
  output = output.last(std::min(output.size(), size_t(index_.capacity() - ContextIndex::kMaxContext)));
  const int64_t needed = static_cast<int64_t>(output.size()) + ContextIndex::kMaxContext;
  while (index_.end() - index_.begin() + needed > index_.capacity()) index_.drop_oldest();
  index_.start_text();
  for (const int32_t token : output) index_.append(token);
}

void EarlierOutputs::clear() {
  const std::lock_guard lock(mutex_);
  index_.clear();
}

int EarlierOutputs::n_tokens() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(index_.end() - index_.begin());
}

SuffixDrafter::SuffixDrafter(int context, int expected, std::shared_ptr<EarlierOutputs> outputs)
    : sequence_(context + ContextIndex::kMaxContext),
      expected_(expected + ContextIndex::kMaxContext),
      outputs_(std::move(outputs)) {
  sequence_.start_text();
}

size_t SuffixDrafter::planned_bytes(int context, int expected) {
  return ContextIndex::planned_bytes(context + ContextIndex::kMaxContext) +
         ContextIndex::planned_bytes(expected + ContextIndex::kMaxContext);
}

void SuffixDrafter::push(std::span<const int32_t> tokens) {
  const int context = sequence_.capacity() - ContextIndex::kMaxContext;
  LB_CHECK(tokens.size() <= static_cast<size_t>(context - n_tokens()), kInvalid, "the suffix drafter has room for ",
           context, " tokens; it holds ", n_tokens(), " and ", tokens.size(), " more were pushed");
  for (const int32_t token : tokens) sequence_.append(token);
}

void SuffixDrafter::truncate(int n_tokens) {
  LB_CHECK(n_tokens >= 0 && n_tokens <= this->n_tokens(), kInvalid, "the suffix drafter holds ", this->n_tokens(),
           " tokens; it cannot be cut to ", n_tokens);
  if (n_tokens > 0) return sequence_.truncate(n_tokens + ContextIndex::kMaxContext);
  sequence_.clear();
  sequence_.start_text();
}

void SuffixDrafter::expect(std::span<const int32_t> text) {
  expected_.clear();
  text = text.first(std::min(text.size(), size_t(expected_.capacity() - ContextIndex::kMaxContext)));
  if (text.empty()) return;
  expected_.start_text();
  for (const int32_t token : text) expected_.append(token);
}

bool SuffixDrafter::start(const DraftRequest& request) {
  size_t n = std::min(request.n_unchanged, n_tokens());
  const bool last_root_joined = n_tokens() == int(n) + 1 && n < request.tokens.size() && request.tokens[n] == root_;
  if (last_root_joined) {
    ++n;
  } else {
    truncate(int(n));
  }
  push(request.tokens.subspan(n));
  push({&request.root, 1});
  root_ = request.root;
  tree_ = propose(request.max_rows).tree;
  return tree_.rows > 1;
}

SuffixDraft SuffixDrafter::propose(int max_rows) const {
  if (n_tokens() == 0) return {};
  std::array<int32_t, ContextIndex::kMaxContext> newest;
  const int n = std::min(n_tokens(), ContextIndex::kMaxContext);
  for (int i = 0; i < n; ++i) newest[i] = sequence_.token(sequence_.end() - n + i);
  const std::span<const int32_t> suffix(newest.data(), n);

  Positions positions;
  SuffixDraft best;
  const auto consider = [&](const ContextIndex& index, const ContextIndex::Match& match, SuffixSource source) {
    if (match.length == 0) return;
    const bool repeats = source == SuffixSource::kSequence;
    const SuffixDraft draft = Growth(index, repeats, positions, match).grow(newest[n - 1], max_rows, source);
    if (draft.accepted > best.accepted) best = draft;
  };
  consider(sequence_, sequence_.match_end(positions), SuffixSource::kSequence);
  consider(expected_, expected_.match(suffix, positions), SuffixSource::kExpected);
  if (outputs_ != nullptr) {
    const std::lock_guard lock(outputs_->mutex_);
    consider(outputs_->index_, outputs_->index_.match(suffix, positions), SuffixSource::kOutputs);
  }
  return best;
}

}  // namespace lb
