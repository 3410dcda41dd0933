// Sampling on the device: a token from logits. It draws the same token as the CPU's sampling/sampler.h, because both
// use the arithmetic of ops/sample_rules.h. Options and everything that changes between tokens live in device memory,
// so one recorded launch serves every request and token.
#pragma once

#include <stdint.h>

namespace lb {

inline constexpr int kMaxTopLogprobs = 20;
inline constexpr int kMaxSampleVocab = 1 << 21;

// Words of a mask. Token i is allowed if bit i % 32 of word i / 32 is set.
constexpr int mask_words(int vocab) { return (vocab + 31) / 32; }

// Options of one request; ranges as in SamplingParams (sampling/sampling_params.h).
struct SampleOptions {
  float temperature;  // below sampling::kMinTemperature: greedy
  int32_t top_k;      // 0: all
  float top_p, min_p, typical_p;
  float repetition_penalty, frequency_penalty, presence_penalty;
  int32_t penalty_window;  // tokens the repetition penalty sees; -1: all
  int32_t has_bias;        // 1: bias is read
  int32_t has_mask;        // 1: mask is read
  int32_t n_top;           // -1: no log probabilities; else for the token and the n_top likeliest
  uint64_t seed;
};

// Progress of a sequence. Sample advances both.
struct SampleState {
  uint64_t draws;    // random draws so far
  int32_t n_tokens;  // tokens in history
};

// Occurrences of one token, for the penalties.
struct TokenCounts {
  int32_t in_window;  // in the last penalty_window tokens
  int32_t generated;  // sampled since the prompt
};

enum class SampleProblem : uint32_t {
  kNone = 0,
  kNotFinite = 1,     // a logit is infinite or NaN
  kAllForbidden = 2,  // bias and mask leave no token
};

struct Sampled {
  int32_t token;  // 0 if there is a problem: a valid id, as the next step may already embed it
  SampleProblem problem;
  float logprob;                        // natural logarithm, of the raw logits; with the next three only if n_top >= 0
  int32_t n_top;                        // min(SampleOptions::n_top, vocab)
  int32_t row;                          // WalkTree only: the tree's row that holds the token; -1: none
  int32_t top_ids[kMaxTopLogprobs];     // [n_top], the likeliest first
  float top_logprobs[kMaxTopLogprobs];  // [n_top]
};

// Chooses result->token and records it in state, history and counts. If there is a problem, records nothing.
struct Sample {
  const float* logits;           // [vocab]; not written
  const SampleOptions* options;  // [1]
  const float* bias;             // [vocab]; -infinity forbids a token; may be null if has_bias is 0
  const uint32_t* mask;          // [mask_words(vocab)]; may be null if has_mask is 0
  TokenCounts* counts;           // [vocab]
  int32_t* history;              // [capacity]: the prompt, then the sampled tokens
  SampleState* state;            // [1]
  Sampled* result;               // [1]
  int vocab, capacity;
};

// counts[id].in_window += occurrences in the last penalty_window tokens of history. For a new prompt; counts start at
// 0.
struct CountWindow {
  const SampleOptions* options;  // [1]
  const SampleState* state;      // [1]
  const int32_t* history;        // [capacity], the first state->n_tokens are valid
  TokenCounts* counts;           // [vocab]
  int capacity;
};

// Values that each block publishes to the other blocks of a Sample.
enum class SampleRow {
  kBest,             // key of the block's best candidate
  kRawBest,          // key of the block's best candidate by the raw logits
  kDistancesHigh,    // WeightedDistances::high over the kept candidates
  kDistancesLow,     // ::low
  kDistanceWeights,  // ::weights
  kKeptLargest,      // largest weight of a kept candidate
  kKeptWeights,      // sum of the kept candidates' weights
  kRawWeights,       // sum of the weights of the raw logits
  kCount,
};
inline constexpr int kSampleBins = 2048;
inline constexpr int kMaxSampleBlocks = 256;

// Scratch that the blocks of a Sample share. Its size is fixed, so a kernel keeps one address in registers, not six.
struct SampleGrid {
  uint32_t barrier;                                         // counter of the grid barrier; zero before its first use
  uint32_t n_gathered;                                      // top tokens gathered so far
  uint64_t gathered[kMaxTopLogprobs];                       // their keys, in any order
  uint64_t rows[int(SampleRow::kCount)][kMaxSampleBlocks];  // SampleRow values, one per block
  uint64_t bin_weights[3][kSampleBins];                     // three histograms in rotation
  uint32_t bin_counts[3][kSampleBins];
};

// Parameters of the sampling kernel.
struct SampleOnGrid {
  Sample op;
  SampleGrid* grid;  // [1]
  float* x;          // [vocab] scratch: adjusted logits
};

}  // namespace lb
