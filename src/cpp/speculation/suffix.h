// SuffixDrafter: drafts without a model, from text that occurred before. It looks for the longest suffix of the
// sequence that occurs earlier in the sequence, in text that the caller expects, or in earlier outputs, and proposes
// what followed there. Host memory and microseconds only; the target decides every token, as for any draft. Method:
// SuffixDecoding (arXiv 2411.04975).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>

#include "ops/draft.h"
#include "speculation/context_index.h"

namespace lb {

enum class SuffixSource { kNone, kSequence, kExpected, kOutputs };

struct SuffixDraft {
  Draft tree{};         // rows by descending score: the first n rows are the best tree of n rows. rows == 0: no match
  double accepted = 0;  // expected number of accepted tokens: sum of the nodes' probabilities
  int match = 0;        // length of the suffix matched, tokens
  SuffixSource source = SuffixSource::kNone;
};

// The newest outputs of all sessions of an engine, bounded. Sessions share it: every call locks.
class EarlierOutputs {
 public:
  explicit EarlierOutputs(int capacity);  // tokens
  static size_t planned_bytes(int capacity);

  // Drops the oldest outputs that are in the way. Of a text longer than the capacity only the end is kept.
  void add(std::span<const int32_t> output);
  void clear();
  int n_tokens() const;  // held, with the gaps between outputs

 private:
  friend class SuffixDrafter;
  mutable std::mutex mutex_;
  ContextIndex index_;
};

class SuffixDrafter {
 public:
  // context: capacity of the sequence, tokens; expected: most tokens of expect(). outputs: null: none.
  // Reserves all memory: 64 bytes per token of both, and nothing later.
  SuffixDrafter(int context, int expected, std::shared_ptr<EarlierOutputs> outputs = nullptr);
  static size_t planned_bytes(int context, int expected);

  // --- the sequence: prompt and output. Its newest token is the root of the next draft.
  int n_tokens() const;
  void push(int32_t token);
  void push(std::span<const int32_t> tokens);
  void truncate(int n_tokens);  // drops the tokens behind; push() and truncate() throw kInvalid beyond the capacity

  // Text that the output is likely to repeat, from its beginning or in parts (OpenAI's predicted outputs). Replaces the
  // text before; empty: none. Tokens beyond the capacity for it are left out.
  void prime(std::span<const int32_t> tokens);

  // The tree below the newest token, at most max_rows rows with the root. Changes nothing.
  SuffixDraft propose(int max_rows) const;
};

}  // namespace lb
