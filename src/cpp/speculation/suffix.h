// SuffixDrafter: drafts without a model, from text that occurred before. It finds the longest suffix of the sequence
// that occurred before, and proposes the tokens that followed there. It searches the sequence, a text that the caller
// expects, and earlier outputs. It needs only host memory and takes microseconds. As with any draft, the target decides
// every token. Method: SuffixDecoding (arXiv 2411.04975), with a discount for rare evidence.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>

#include "ops/draft.h"
#include "speculation/context_index.h"
#include "speculation/drafter.h"

namespace lb {

enum class SuffixSource { kNone, kSequence, kExpected, kOutputs };

struct SuffixDraft {
  Draft tree{};         // rows by descending score: its first n rows are the best tree of n rows. rows == 0: no match
  double accepted = 0;  // expected number of accepted tokens: the sum of the nodes' probabilities
  int match = 0;        // length of the matched suffix, tokens
  SuffixSource source = SuffixSource::kNone;
};

// The newest outputs of an engine's sessions: at most `capacity` tokens, where each output counts
// ContextIndex::kMaxContext extra. Thread-safe: every call locks.
class EarlierOutputs {
 public:
  explicit EarlierOutputs(int capacity);  // throws kInvalid below 2 * kMaxContext
  static size_t planned_bytes(int capacity) { return ContextIndex::planned_bytes(capacity); }

  // Drops the oldest outputs until there is room. An output longer than the capacity keeps only its end.
  void add(std::span<const int32_t> output);
  void clear();
  int n_tokens() const;  // in use

 private:
  friend class SuffixDrafter;
  mutable std::mutex mutex_;
  ContextIndex index_;
};

class SuffixDrafter final : public Drafter {
 public:
  // Reserves all memory for a sequence of `context` tokens and an expected text of `expected` tokens. Throws kInvalid.
  SuffixDrafter(int context, int expected, std::shared_ptr<EarlierOutputs> outputs = nullptr);
  static size_t planned_bytes(int context, int expected);

  // --- the sequence: prompt and output. Its newest token is the root of the next draft.
  int n_tokens() const { return static_cast<int>(sequence_.end()) - ContextIndex::kMaxContext; }
  void push(std::span<const int32_t> tokens);  // throws kInvalid beyond the context
  void truncate(int n_tokens);                 // drops later tokens; throws kInvalid above n_tokens()

  // A text that the output is likely to repeat as a whole or in parts (OpenAI's predicted outputs). Replaces the
  // previous text; empty: none. Tokens beyond the capacity are dropped.
  void expect(std::span<const int32_t> text);
  // Sets the earlier outputs to draft from; null: none.
  void set_outputs(std::shared_ptr<EarlierOutputs> outputs) { outputs_ = std::move(outputs); }
  EarlierOutputs* outputs() const { return outputs_.get(); }

  // Updates the sequence to the request's tokens and root, and drafts below the root.
  bool start(const DraftRequest& request) override;
  Draft tree(int) override { return tree_; }
  // The tree below the newest token, with at most max_rows rows including the root.
  SuffixDraft propose(int max_rows) const;

 private:
  ContextIndex sequence_, expected_;
  std::shared_ptr<EarlierOutputs> outputs_;
  int32_t root_ = -1;  // root of the last start(); in the sequence, it follows the request's tokens
  Draft tree_{};
};

}  // namespace lb
