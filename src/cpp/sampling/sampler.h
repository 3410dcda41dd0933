// Turns logits into a token. Order: logit bias, mask, penalties, temperature, top-k, typical, top-p, min-p, one draw.
// Deterministic: ties go to the lower id, and the uniform draw is a pure function of seed and draw number. The
// arithmetic is that of ops/sample_rules.h, so that src/gpu/sampling/sample.cpp draws the same tokens.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

namespace lb {

struct SamplingParams {
  float temperature = 0;  // 0: greedy
  int top_k = 0;          // 0: all
  float top_p = 1, min_p = 0, typical_p = 1;
  float repetition_penalty = 1, frequency_penalty = 0, presence_penalty = 0;
  int penalty_window = 64;  // tokens the repetition penalty sees; -1: all
  std::vector<std::pair<int32_t, float>> logit_bias;
  uint64_t seed = 0;
  int n_top = -1;  // on a device: log probabilities of the token and of the n_top likeliest; -1: none
};

inline constexpr const char* kAllForbiddenText = "logit_bias and mask forbid every token of the vocabulary";

// Throws kInvalid naming the field.
void validate(const SamplingParams& params, int vocab);

// Uniform in [0, 1) from (seed, draw): SplitMix64 of both.
double uniform_draw(uint64_t seed, uint64_t draw);

class Sampler {
 public:
  Sampler(const SamplingParams& params, int vocab);

  // The tokens before the first sampled one (the repetition penalty sees them; the others count generated text only).
  void set_prompt(std::span<const int32_t> prompt);
  // Only tokens with their bit set (ops/sample.h) can be chosen, until the next call; empty: all can. Keeps a copy.
  void set_mask(std::span<const uint32_t> bits);
  // Chooses, records the choice, and takes exactly one draw when temperature > 0. logits are left untouched.
  int32_t sample(std::span<const float> logits);
  // Records a choice that was made elsewhere by the same rules.
  void record(int32_t token);

  const SamplingParams& params() const { return params_; }
  // Of the mask set last; empty where there is none.
  std::span<const uint32_t> mask() const { return {mask_.data(), is_masked_ ? mask_.size() : 0}; }
  // Of the parameters, the prompt and whether choices have waited for a mask: no two samplers have the same one.
  uint64_t version() const { return version_; }
  uint64_t draws() const { return draws_; }
  std::span<const int32_t> history() const { return history_; }
  const std::unordered_map<int32_t, int>& generated() const { return generated_; }

 private:
  struct Candidate {
    int32_t id;
    float logit;
    uint32_t distance;  // of the logit to the largest
    uint64_t weight;    // of this distance
  };
  bool plain() const;  // greedy without anything but a mask that changes logits
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
  std::vector<uint8_t> seen_;
  std::vector<uint32_t> mask_;  // [mask_words(vocab)] from the first mask on
  bool is_masked_ = false;
};

// Natural log probabilities of the raw logits: of `token`, and of the n most likely.
struct Logprobs {
  double token;
  std::vector<std::pair<int32_t, double>> top;
};
Logprobs logprobs(std::span<const float> logits, int32_t token, int n_top);
int32_t argmax(std::span<const float> logits);

}  // namespace lb
