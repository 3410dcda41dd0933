// A token from logits, wholly on the device: what sampling/sampler.h does, by the arithmetic of ops/sample_rules.h, so
// that both draw the same token. Options and everything that changes from token to token lie in device memory.
#pragma once

#include <stdint.h>

namespace lb {

inline constexpr int kMaxTopLogprobs = 20;
inline constexpr int kMaxSampleVocab = 1 << 21;

// Of a mask: token i is allowed where bit i % 32 of word i / 32 is set.
constexpr int mask_words(int vocab) { return (vocab + 31) / 32; }

// Of a request; ranges as SamplingParams.
struct SampleOptions {
  float temperature;  // 0: greedy
  int32_t top_k;      // 0: all
  float top_p, min_p, typical_p;
  float repetition_penalty, frequency_penalty, presence_penalty;
  int32_t penalty_window;  // tokens the repetition penalty sees; -1: all
  int32_t has_bias;        // 1: bias is read
  int32_t has_mask;        // 1: mask is read
  int32_t n_top;           // -1: no log probabilities; else the token's and those of the n_top likeliest
  uint64_t seed;
};

// Where a sequence stands; both are counted up by the op.
struct SampleState {
  uint64_t draws;    // made so far
  int32_t n_tokens;  // in history
};

// What penalties know of a token.
struct TokenCounts {
  int32_t in_window;  // in the last penalty_window tokens
  int32_t generated;  // by this op since the prompt
};

enum class SampleProblem : uint32_t {
  kNone = 0,
  kNotFinite = 1,     // a logit is infinite or NaN
  kAllForbidden = 2,  // by bias and mask
};

struct Sampled {
  int32_t token;  // 0 where there is a problem: an id that may be read with
  SampleProblem problem;
  float logprob;                     // natural, of the raw logits; these three only where n_top >= 0
  int32_t n_top;                     // min(n_top, vocab)
  int32_t top_ids[kMaxTopLogprobs];  // the likeliest first
  float top_logprobs[kMaxTopLogprobs];
};

// Chooses result->token and records it in state, history and counts; with a problem nothing is recorded.
struct Sample {
  const float* logits;           // [vocab]; left untouched
  const SampleOptions* options;  // [1]
  const float* bias;             // [vocab]; -infinity forbids a token; may be null where has_bias is 0
  const uint32_t* mask;          // [mask_words(vocab)]; may be null where has_mask is 0
  TokenCounts* counts;           // [vocab]
  int32_t* history;              // [capacity]: prompt, then what was sampled
  SampleState* state;            // [1]
  Sampled* result;               // [1]
  int vocab, capacity;
};

// counts[id].in_window += occurrences in the last penalty_window tokens of history: for a new prompt, on zeros.
struct CountWindow {
  const SampleOptions* options;  // [1]
  const SampleState* state;      // [1]
  const int32_t* history;        // [capacity], n_tokens of them given
  TokenCounts* counts;           // [vocab]
  int capacity;
};

// What each block tells the others.
enum class SampleRow {
  kBest,
  kRawBest,
  kDistancesHigh,
  kDistancesLow,
  kDistanceWeights,
  kKeptLargest,
  kKeptWeights,
  kRawWeights,
  kCount,
};
inline constexpr int kSampleBins = 2048;
inline constexpr int kMaxSampleBlocks = 256;

// What the blocks of a Sample share. Of a fixed size, so that a kernel holds one address of it.
struct SampleGrid {
  uint32_t barrier;  // zero before its first use
  uint32_t n_gathered;
  uint64_t gathered[kMaxTopLogprobs];
  uint64_t rows[int(SampleRow::kCount)][kMaxSampleBlocks];
  uint64_t bin_weights[3][kSampleBins];
  uint32_t bin_counts[3][kSampleBins];
};

struct SampleOnGrid {
  Sample op;
  SampleGrid* grid;  // [1]
  float* x;          // [vocab]: adjusted logits
};

}  // namespace lb
