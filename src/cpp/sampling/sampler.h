// Sampler: turns logits into a token. Order: logit bias, mask, penalties, temperature, top-k, typical, top-p, min-p,
// one draw. Deterministic: ties go to the lower id, and a draw is a pure function of the seed and the draw's index.
// The arithmetic is in ops/sample_rules.h, so that the kernel src/gpu/sampling/sample.cpp draws the same tokens.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "sampling/sampling_params.h"

namespace lb {

inline constexpr const char* kAllForbiddenText = "logit_bias and mask forbid every token of the vocabulary";

// Throws kInvalid, naming the field.
void validate(const SamplingParams& params, int vocab);

// The uniform number in [0, 1) of draw number `draw`: SplitMix64 of both.
double uniform_draw(uint64_t seed, uint64_t draw);

class Sampler {
 public:
  // params.logprobs: a device computes them beside the token. The CPU has the logits for them.
  Sampler(const SamplingParams& params, int vocab);

  // Sets the tokens before the first sampled one. The repetition penalty counts them; the other penalties count
  // generated tokens only.
  void set_prompt(std::span<const int32_t> prompt);
  // Allows only tokens whose bit is set (mask_words in ops/sample.h) until the next call. Empty: all. Copies the bits.
  void set_mask(std::span<const uint32_t> bits);
  bool is_greedy() const;  // whether the choice takes no draw
  // Chooses a token and records it. Takes exactly one draw, or none where the choice is greedy.
  int32_t sample(std::span<const float> logits);
  // Records a token that the device chose by the same rules.
  void record(int32_t token);
  // Records a token that the caller appended without sampling. It takes no draw.
  void record_forced(int32_t token);
  // Removes the token recorded last, which another one replaces. Its draw stays taken.
  void drop_last();

  const SamplingParams& params() const { return params_; }
  // The mask in force; empty: none.
  std::span<const uint32_t> mask() const { return {mask_.data(), is_masked_ ? mask_.size() : 0}; }
  // A token chosen ahead is valid only while the version stays the same. It changes with the prompt, with
  // forced and dropped tokens, and when a mask is set after none. No two samplers share a version.
  uint64_t version() const { return version_; }
  uint64_t draws() const { return draws_; }                      // taken since the prompt
  std::span<const int32_t> history() const { return history_; }  // the prompt, then the recorded tokens
  const std::unordered_map<int32_t, int>& generated() const { return generated_; }  // token -> times recorded

 private:
  struct Candidate {
    int32_t id;
    float logit;
    uint32_t distance;  // largest logit - logit, in 2^-26 nat
    uint64_t weight;    // e^-distance, in 2^-40
  };
  bool is_plain_greedy() const;  // argmax of the raw logits, at most masked
  int32_t allowed_argmax(std::span<const float> logits) const;
  void load(std::span<const float> logits);
  void penalise();
  void weigh();
  uint64_t total() const;
  void keep_top(size_t k);
  void filter_top_k();
  void filter_typical();
  void filter_top_p();
  void filter_min_p();
  int32_t draw();

  SamplingParams params_;
  int vocab_;
  uint64_t version_, draws_ = 0;
  std::vector<int32_t> history_;
  std::unordered_map<int32_t, int> generated_;
  std::vector<Candidate> candidates_;
  std::vector<uint8_t> seen_;   // [vocab] scratch of penalise(): 1: already penalised
  std::vector<uint32_t> mask_;  // [mask_words(vocab)] since the first mask
  bool is_masked_ = false;
};

// Natural log probabilities of the raw logits: of one token, and of the likeliest tokens (id, log probability).
struct Logprobs {
  double token;
  std::vector<std::pair<int32_t, double>> top;
};
Logprobs logprobs(std::span<const float> logits, int32_t token, int n_top);
int32_t argmax(std::span<const float> logits);

}  // namespace lb
