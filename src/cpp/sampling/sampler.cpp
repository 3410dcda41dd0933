// Implements the sampler. The filters work on one list of candidates, in the order that the header gives.
#include "sampling/sampler.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "ops/sample.h"
#include "ops/sample_rules.h"

namespace lb {
namespace {

constexpr float kForbidden = -std::numeric_limits<float>::infinity();

void check_range(const char* name, double value, double low, double high) {
  LB_CHECK(value >= low && value <= high, kInvalid, name, " must be between ", low, " and ", high, ", got ", value);
}

// Total order, larger logit first, then lower id: with equal logits the result does not depend on the sort.
template <class Candidate>
bool likelier(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
}

uint64_t next_version() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

}  // namespace

void validate(const SamplingParams& p, int vocab) {
  check_range("temperature", p.temperature, 0, 100);
  check_range("top_k", p.top_k, 0, std::numeric_limits<int32_t>::max());
  LB_CHECK(p.top_p > 0 && p.top_p <= 1, kInvalid, "top_p must be above 0 and at most 1, got ", p.top_p);
  check_range("min_p", p.min_p, 0, 1);
  LB_CHECK(p.typical_p > 0 && p.typical_p <= 1, kInvalid, "typical_p must be above 0 and at most 1, got ", p.typical_p);
  LB_CHECK(p.repetition_penalty > 0 && p.repetition_penalty <= 100, kInvalid,
           "repetition_penalty must be above 0 and at most 100, got ", p.repetition_penalty);
  check_range("frequency_penalty", p.frequency_penalty, -100, 100);
  check_range("presence_penalty", p.presence_penalty, -100, 100);
  check_range("penalty_window", p.penalty_window, -1, std::numeric_limits<int32_t>::max());
  for (const auto& [id, bias] : p.logit_bias) {
    LB_CHECK(id >= 0 && id < vocab, kInvalid, "logit_bias names token ", id, "; the vocabulary has ", vocab);
    check_range("logit_bias", bias, -100, 100);
  }
}

double uniform_draw(uint64_t seed, uint64_t draw) {
  return static_cast<double>(sampling::uniform(seed, draw)) * 0x1.0p-53;
}

Sampler::Sampler(const SamplingParams& params, int vocab) : params_(params), vocab_(vocab), version_(next_version()) {
  validate(params, vocab);
  if (!is_plain_greedy()) {
    candidates_.reserve(vocab);
    seen_.assign(vocab, 0);
  }
}

bool Sampler::is_greedy() const { return sampling::is_greedy(params_.temperature); }

bool Sampler::is_plain_greedy() const {
  return is_greedy() && params_.logit_bias.empty() && params_.repetition_penalty == 1 &&
         params_.frequency_penalty == 0 && params_.presence_penalty == 0;
}

void Sampler::set_prompt(std::span<const int32_t> prompt) {
  for (size_t i = 0; i < prompt.size(); ++i)
    LB_CHECK(prompt[i] >= 0 && prompt[i] < vocab_, kInvalid, "token ", i, " of the prompt is ", prompt[i],
             "; the vocabulary has ", vocab_, " tokens");
  history_.assign(prompt.begin(), prompt.end());
  generated_.clear();
  version_ = next_version();
  draws_ = 0;
}

void Sampler::set_mask(std::span<const uint32_t> bits) {
  if (bits.empty()) {
    is_masked_ = false;
    return;
  }
  const size_t words = mask_words(vocab_);
  LB_CHECK(bits.size() == words, kInvalid, "a mask of ", bits.size(), " words; a vocabulary of ", vocab_, " has ",
           words);
  const uint32_t last = vocab_ % 32 == 0 ? ~0u : (1u << vocab_ % 32) - 1;  // the last word's bits that are tokens
  const bool allows_any = std::ranges::any_of(bits.first(words - 1), [](uint32_t word) { return word != 0; }) ||
                          (bits[words - 1] & last) != 0;
  LB_CHECK(allows_any, kInvalid, "the mask forbids every token of the vocabulary");
  mask_.assign(bits.begin(), bits.end());
  if (!is_masked_) version_ = next_version();  // invalidates a token chosen ahead without the mask
  is_masked_ = true;
}

int32_t Sampler::sample(std::span<const float> logits) {
  LB_CHECK(logits.size() == static_cast<size_t>(vocab_), kInvalid, "got ", logits.size(),
           " logits; the sampler was made for a vocabulary of ", vocab_);
  int32_t token;
  if (is_plain_greedy()) {
    token = is_masked_ ? allowed_argmax(logits) : argmax(logits);
  } else {
    load(logits);
    penalise();
    const bool any_left = std::ranges::any_of(candidates_, [](const Candidate& c) { return c.logit > kForbidden; });
    LB_CHECK(any_left, kInvalid, kAllForbiddenText);
    if (is_greedy()) {
      token = std::min_element(candidates_.begin(), candidates_.end(), likelier<Candidate>)->id;
    } else {
      weigh();
      filter_top_k();
      filter_typical();
      filter_top_p();
      filter_min_p();
      token = draw();
    }
  }
  record(token);
  return token;
}

void Sampler::record(int32_t token) {
  history_.push_back(token);
  ++generated_[token];
  if (!is_greedy()) ++draws_;
}

void Sampler::record_forced(int32_t token) {
  LB_CHECK(token >= 0 && token < vocab_, kInvalid, "the forced token is ", token, "; the vocabulary has ", vocab_,
           " tokens");
  history_.push_back(token);
  ++generated_[token];
  version_ = next_version();
}

void Sampler::drop_last() {
  LB_CHECK(!generated_.empty(), kInvalid, "there is no token to drop: none was generated after the prompt");
  const auto count = generated_.find(history_.back());
  if (--count->second == 0) generated_.erase(count);
  history_.pop_back();
  version_ = next_version();
}

int32_t Sampler::allowed_argmax(std::span<const float> logits) const {
  int32_t best = -1;
  float largest = 0;
  for (int32_t first = 0; first < vocab_; first += 32)
    for (uint32_t bits = mask_[first / 32]; bits != 0; bits &= bits - 1) {
      const int32_t id = first + std::countr_zero(bits);
      if (id >= vocab_ || (best >= 0 && logits[id] <= largest)) continue;
      best = id;
      largest = logits[id];
    }
  return best;
}

void Sampler::load(std::span<const float> logits) {
  candidates_.clear();
  for (int32_t id = 0; id < vocab_; ++id) candidates_.push_back({id, logits[id], 0, 0});
  for (const auto& [id, bias] : params_.logit_bias)
    candidates_[id].logit = sampling::biased(candidates_[id].logit, bias <= -100 ? kForbidden : bias);
  if (!is_masked_) return;
  for (Candidate& c : candidates_)
    if (!sampling::allows(mask_.data(), c.id)) c.logit = kForbidden;
}

void Sampler::penalise() {
  if (params_.repetition_penalty != 1) {
    const size_t window = params_.penalty_window < 0 ? history_.size() : static_cast<size_t>(params_.penalty_window);
    const size_t first = history_.size() - std::min(window, history_.size());
    for (size_t i = first; i < history_.size(); ++i) {
      const int32_t id = history_[i];
      if (seen_[id]) continue;
      seen_[id] = 1;
      float& logit = candidates_[id].logit;
      logit = sampling::repeated(logit, params_.repetition_penalty);
    }
    for (size_t i = first; i < history_.size(); ++i) seen_[history_[i]] = 0;
  }
  if (params_.frequency_penalty != 0 || params_.presence_penalty != 0)
    for (const auto& [id, count] : generated_)
      candidates_[id].logit =
          sampling::counted(candidates_[id].logit, params_.frequency_penalty, params_.presence_penalty, count);
}

// Applies the temperature and computes each candidate's weight relative to the likeliest.
void Sampler::weigh() {
  float largest = -std::numeric_limits<float>::infinity();
  for (Candidate& c : candidates_) {
    c.logit = sampling::tempered(c.logit, params_.temperature);
    largest = std::max(largest, c.logit);
  }
  for (Candidate& c : candidates_) {
    c.distance = sampling::distance(largest, c.logit);
    c.weight = sampling::weight(c.distance);
  }
}

// Moves the k likeliest candidates to the front, in order.
void Sampler::keep_top(size_t k) {
  k = std::min(k, candidates_.size());
  if (k < candidates_.size())
    std::nth_element(candidates_.begin(), candidates_.begin() + k, candidates_.end(), likelier<Candidate>);
  std::sort(candidates_.begin(), candidates_.begin() + k, likelier<Candidate>);
}

void Sampler::filter_top_k() {
  if (params_.top_k == 0 || static_cast<size_t>(params_.top_k) >= candidates_.size()) return;
  keep_top(params_.top_k);
  candidates_.resize(params_.top_k);
}

uint64_t Sampler::total() const {
  uint64_t sum = 0;
  for (const Candidate& c : candidates_) sum += c.weight;
  return sum;
}

void Sampler::filter_typical() {
  if (params_.typical_p >= 1) return;
  sampling::WeightedDistances sum = {};
  for (const Candidate& c : candidates_) sampling::add_to(sum, c.distance, c.weight);
  const uint32_t mean = sampling::mean(sum);
  const auto atypicality = [mean](const Candidate& c) { return sampling::atypicality(c.distance, c.weight, mean); };
  std::sort(candidates_.begin(), candidates_.end(), [&](const Candidate& a, const Candidate& b) {
    const uint32_t da = atypicality(a), db = atypicality(b);
    return da != db ? da < db : likelier(a, b);
  });
  const uint64_t enough = sampling::share_of(sum.weights, params_.typical_p);
  uint64_t kept = 0;
  size_t n = 0;
  while (n < candidates_.size() && (n == 0 || kept < enough)) kept += candidates_[n++].weight;
  candidates_.resize(n);
}

void Sampler::filter_top_p() {
  if (params_.top_p >= 1) return;
  const uint64_t enough = sampling::share_of(total(), params_.top_p);
  // The set is usually small, so sort growing prefixes instead of the whole vocabulary.
  for (size_t front = 64;; front *= 8) {
    keep_top(front);
    const size_t end = std::min(front, candidates_.size());
    uint64_t sum = 0;
    for (size_t i = 0; i < end; ++i) {
      sum += candidates_[i].weight;
      if (sum >= enough) return candidates_.resize(i + 1);
    }
    if (end == candidates_.size()) return;
  }
}

void Sampler::filter_min_p() {
  if (params_.min_p <= 0) return;
  uint64_t top = 0;
  for (const Candidate& c : candidates_) top = std::max(top, c.weight);
  const uint64_t min_weight = sampling::share_of(top, params_.min_p);
  std::erase_if(candidates_, [min_weight](const Candidate& c) { return c.weight < min_weight; });
}

int32_t Sampler::draw() {
  // In the order of ids, which holds unless a filter has sorted the candidates.
  const auto by_id = [](const Candidate& a, const Candidate& b) { return a.id < b.id; };
  if (!std::ranges::is_sorted(candidates_, by_id)) std::ranges::sort(candidates_, by_id);
  const uint64_t fall = sampling::scaled_draw(sampling::uniform(params_.seed, draws_), total());
  uint64_t sum = 0;
  for (const Candidate& c : candidates_)
    if ((sum += c.weight) > fall) return c.id;
  LB_ASSERT(false);  // fall is below the total
  return 0;
}

int32_t argmax(std::span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

Logprobs logprobs(std::span<const float> logits, int32_t token, int n_top) {
  const double top = logits[argmax(logits)];
  double total = 0;
  for (float logit : logits) total += std::exp(static_cast<double>(logit) - top);
  const double log_total = top + std::log(total);
  Logprobs result{logits[token] - log_total, {}};
  if (n_top <= 0) return result;
  std::vector<int32_t> ids;  // the likeliest so far, sorted: one pass over the vocabulary
  const auto better = [&](int32_t a, int32_t b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; };
  for (int32_t id = 0; id < static_cast<int32_t>(logits.size()); ++id) {
    if (ids.size() == static_cast<size_t>(n_top) && !better(id, ids.back())) continue;
    ids.insert(std::lower_bound(ids.begin(), ids.end(), id, better), id);
    if (ids.size() > static_cast<size_t>(n_top)) ids.pop_back();
  }
  for (int32_t id : ids) result.top.emplace_back(id, logits[id] - log_total);
  return result;
}

}  // namespace lb
