// A decode loop without a model: each step gets given logits, and the device runs the sampler and the end of the step
// as in the engine. Tokens are read from the ring.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>

#include <bit>
#include <cstring>
#include <deque>
#include <limits>

#include "bindings/kernels/bindings.h"
#include "bindings/kernels/gpu_call.h"
#include "bindings/options.h"
#include "device/memory.h"
#include "engine/gpu_token_loop.h"
#include "gpu/choose_several.h"
#include "gpu/sampling/choose.h"
#include "ops/draft_rules.h"

using namespace nanobind::literals;

namespace lb::kernels {
namespace {

template <class T>
T* zeros(Call& call, size_t count) {
  return static_cast<T*>(call.zeros(count * sizeof(T)));
}

// The fields of all steps, each as an array over the steps.
nb::dict dict_of(const std::vector<Sampled>& steps, int n_top) {
  std::vector<int32_t> tokens, top_ids;
  std::vector<uint32_t> problems;
  std::vector<float> logprobs, top_logprobs;
  for (const Sampled& step : steps) {
    tokens.push_back(step.token);
    problems.push_back(uint32_t(step.problem));
    logprobs.push_back(step.logprob);
    for (int i = 0; i < n_top; ++i) {
      top_ids.push_back(step.top_ids[i]);
      top_logprobs.push_back(step.top_logprobs[i]);
    }
  }
  const size_t n = steps.size();
  nb::dict result;
  result["tokens"] = to_numpy<1>(std::move(tokens), {n});
  result["problems"] = to_numpy<1>(std::move(problems), {n});
  result["logprobs"] = to_numpy<1>(std::move(logprobs), {n});
  result["top_ids"] = to_numpy<2>(std::move(top_ids), {n, size_t(n_top)});
  result["top_logprobs"] = to_numpy<2>(std::move(top_logprobs), {n, size_t(n_top)});
  return result;
}

// Tokens and parents of a tree, root first.
using TreeArrays = std::pair<In<int32_t, 1>, In<int32_t, 1>>;

Draft draft_of(const TreeArrays& tree) {
  const auto& [tokens, parents] = tree;
  const int rows = size(tokens, 0);
  LB_CHECK(rows >= 1 && rows <= kMaxTree && size(parents, 0) == rows, kInvalid, "a tree has 1 to ", kMaxTree,
           " tokens and as many parents; got ", rows, " and ", size(parents, 0));
  Draft draft{};
  drafting::start(draft, tokens(0));
  for (int i = 1; i < rows; ++i) {
    LB_CHECK(parents(i) >= 0 && parents(i) < i, kInvalid, "row ", i, " has parent ", parents(i));
    drafting::add(draft, tokens(i), parents(i), 0);
  }
  return draft;
}

// A sequence and the buffers of its steps.
class Sequence {
 public:
  Sequence(PythonPack& pack, const SamplingParams& params, int vocab, In<int32_t, 1> prompt, size_t steps,
           int ring_capacity, bool with_append, const std::optional<In<uint32_t, 1>>& mask)
      : pack_(pack),
        call_(pack),
        ring_(pack.device(), ring_capacity * sizeof(Sampled) + sizeof(uint32_t), gpu::Buffer::Kind::kPinned) {
    const int n_prompt = size(prompt, 0), capacity = n_prompt + int(steps);
    LB_CHECK(params.logprobs <= kMaxTopLogprobs, kInvalid, "logprobs is at most ", kMaxTopLogprobs);
    LB_CHECK(!mask || size(*mask, 0) == mask_words(vocab), kInvalid, "a mask of ", size(*mask, 0), " words");
    SampleOptions options = sample_options_of(params);
    options.has_mask = mask.has_value();
    std::vector<float> bias(params.logit_bias.empty() ? 0 : vocab);
    for (const auto& [id, value] : params.logit_bias)
      bias[id] = value <= -100 ? -std::numeric_limits<float>::infinity() : value;
    std::vector<int32_t> history(capacity, -1);
    std::copy_n(prompt.data(), n_prompt, history.begin());
    const SampleState state{.draws = 0, .n_tokens = n_prompt};
    op = {.logits = nullptr,
          .options = call_.in(&options, 1),
          .bias = bias.empty() ? nullptr : call_.in(bias),
          .mask = mask ? call_.in(mask->data(), mask->size()) : nullptr,
          .counts = zeros<TokenCounts>(call_, vocab),
          .history = call_.in_out(history.data(), history.size()),
          .state = call_.in_out(&state, 1),
          .result = call_.out<Sampled>(1),
          .vocab = vocab,
          .capacity = capacity};
    const CountWindow window{
        .options = op.options, .state = op.state, .history = op.history, .counts = op.counts, .capacity = capacity};
    pack.run(gpu::choose(window, pack.target()), window);

    std::memset(ring_.data(), 0, ring_.size());
    auto* written = reinterpret_cast<uint32_t*>(ring_.data() + ring_capacity * sizeof(Sampled));
    const int32_t before[5 + kPositions] = {-1, 0, 0, 0, 7};  // token, four append numbers, positions
    numbers = call_.in_out(before, std::size(before));
    next = {.sampled = op.result,
            .ring = {.slots = reinterpret_cast<Sampled*>(ring_.data()), .written = written, .capacity = ring_capacity},
            .n_written = zeros<uint32_t>(call_, 1),
            .token = numbers,
            .n_past = with_append ? numbers + 1 : nullptr,
            .key_buffer = numbers + 2,
            .n_accepted = numbers + 3,
            .accepted = numbers + 4,
            .positions = numbers + 5,
            .n_positions = kPositions};
    scratch = call_.zeros(gpu::sample_scratch_bytes(vocab));
  }

  Call& call() { return call_; }
  // Appends the ring's tokens since the last call.
  void take(std::vector<Sampled>& results) const {
    pack_.stream().synchronize();
    const uint32_t n = __atomic_load_n(next.ring.written, __ATOMIC_ACQUIRE);
    while (results.size() < n) results.push_back(next.ring.slots[results.size() % next.ring.capacity]);
  }
  void read(nb::dict& result) {
    result["numbers"] = call_.read(numbers, size_t(5 + kPositions));
    result["counts"] = call_.read(reinterpret_cast<const int32_t*>(op.counts), size_t(op.vocab), size_t(2));
    result["history"] = call_.read(op.history, size_t(op.capacity));
  }

  Sample op;
  NextToken next;
  int32_t* numbers;
  void* scratch;

 private:
  static constexpr int kPositions = 3;

  PythonPack& pack_;
  Call call_;
  gpu::Buffer ring_;
};

nb::dict sample(PythonPack& pack, FloatMatrix logits, In<int32_t, 1> prompt, int ring_capacity, bool with_append,
                std::optional<In<uint32_t, 1>> mask, const std::optional<TreeArrays>& tree, int first,
                int replay_length, const nb::kwargs& named) {
  const SamplingParams params = sampling_params_of(named);
  const size_t steps = logits.shape(0);
  const int vocab = size(logits, 1);
  Sequence sequence(pack, params, vocab, prompt, steps, ring_capacity, with_append, mask);
  Call& call = sequence.call();
  Sample& op = sequence.op;
  const NextToken& next = sequence.next;
  const float* all_logits = call.in(logits);
  std::vector<Sampled> results;
  nb::object accept = nb::none();
  if (tree) {
    const Draft draft = draft_of(*tree);
    LB_CHECK(size_t(draft.rows) == steps && ring_capacity >= int(steps), kInvalid, "a walk has logits for each of the ",
             draft.rows, " rows, and a ring for as many; got ", steps, " and ", ring_capacity);
    op.logits = all_logits;
    constexpr int kDraftPositions = 37;
    const std::vector<int32_t> none(2 + kMaxTree + 3 * kDraftPositions, -1);
    int32_t* accepted = call.in_out(none.data(), none.size());
    const WalkTree walk{.choice = op,
                        .tokens = call.in(draft.tokens, draft.rows),
                        .parents = call.in(draft.parents, draft.rows),
                        .rows = draft.rows,
                        .first = first,
                        .replay_length = replay_length,
                        .ring = next.ring,
                        .n_written = next.n_written,
                        .token = next.token,
                        .accept = {.n_before = accepted,
                                   .n_past = next.n_past,
                                   .key_buffer = next.key_buffer,
                                   .n_accepted = next.n_accepted,
                                   .accepted = accepted + 2,
                                   .root = accepted + 1,
                                   .positions = accepted + 2 + kMaxTree,
                                   .n_positions = kDraftPositions}};
    const gpu::WalkLaunch launch = gpu::choose(walk, sequence.scratch, pack.target());
    pack.run(launch.launch, launch.params);
    sequence.take(results);
    accept = call.read(accepted, none.size());
  }
  for (size_t step = tree ? steps : 0; step < steps; ++step) {
    op.logits = all_logits + step * vocab;
    const gpu::SampleLaunches launches = gpu::choose(op, sequence.scratch, pack.target());
    pack.run(launches.launch, launches.params);
    pack.run(gpu::choose(next, pack.target()), next);
    if ((step + 1) % ring_capacity != 0 && step + 1 < steps) continue;  // the host lags as far as the ring allows
    sequence.take(results);
    LB_CHECK(results.size() == step + 1, kInternal, "the ring says ", results.size(), " tokens after ", step + 1);
  }
  nb::dict result = dict_of(results, std::max(std::min(params.logprobs, vocab), 0));
  result["accept"] = accept;
  sequence.read(result);
  return result;
}

std::vector<nb::dict> sample_several(PythonPack& pack, In<float, 3> logits, In<int32_t, 1> prompt,
                                     const nb::kwargs& named) {
  const SamplingParams params = sampling_params_of(named);
  const int n = size(logits, 0), steps = size(logits, 1), vocab = size(logits, 2);
  LB_CHECK(n >= 1 && n <= gpu::kMaxSeveral, kInvalid, "1 to ", gpu::kMaxSeveral, " sequences share a launch, got ", n);
  const int ring_capacity = int(std::bit_ceil(unsigned(steps)));
  std::deque<Sequence> sequences;
  for (int i = 0; i < n; ++i) {
    Sequence& own = sequences.emplace_back(pack, params, vocab, prompt, steps, ring_capacity, true, std::nullopt);
    own.op.logits = own.call().in(logits.data() + size_t(i) * steps * vocab, size_t(steps) * vocab);
  }
  const auto start = [&](const gpu::Launch& one, const auto& of_each) {
    if (const auto launch = gpu::for_several(one, n, pack.target())) return pack.run(*launch, of_each);
    for (int i = 0; i < n; ++i) pack.run(one, of_each.of[i]);  // as the engine does
  };
  for (int step = 0; step < steps; ++step) {
    gpu::Launch choice{}, end{};
    gpu::Several<SampleOnGrid> choices{};
    gpu::Several<NextToken> ends{};
    for (int i = 0; i < n; ++i) {
      Sequence& own = sequences[i];
      const gpu::SampleLaunches chosen = gpu::choose(own.op, own.scratch, pack.target(), gpu::kMaxSeveral);
      choice = chosen.launch;
      choices.of[i] = chosen.params;
      end = gpu::choose(own.next, pack.target());
      ends.of[i] = own.next;
      own.op.logits += vocab;
    }
    start(choice, choices);
    start(end, ends);
  }
  std::vector<nb::dict> all;
  for (Sequence& own : sequences) {
    std::vector<Sampled> results;
    own.take(results);
    all.push_back(dict_of(results, 0));
    own.read(all.back());
  }
  return all;
}

}  // namespace

void bind_gpu_sample(nb::module_& m) {
  m.def("sample", &sample, "pack"_a, "logits"_a, "prompt"_a, "ring_capacity"_a = 4, "with_append"_a = true,
        "mask"_a = nb::none(), "tree"_a = nb::none(), "first"_a = 0, "replay_length"_a = -1, "options"_a,
        "One token for each row of logits, and what the device then knows: a dict of arrays. With a tree (tokens, "
        "parents), the tokens of a walk down it from row `first`, whose rows the logits belong to; `accept` is then "
        "n_before, root, accepted[64] and positions[3, 37] of an AcceptPath.");
  m.def("sample_several", &sample_several, "pack"_a, "logits"_a, "prompt"_a, "options"_a,
        "sample() of sequences with this prompt, in launches for all where the pack has kernels for that. logits: "
        "[sequences, steps, vocab].");
}

}  // namespace lb::kernels
