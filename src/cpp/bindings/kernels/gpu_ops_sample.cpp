// A decode loop without its model: given logits for every step, the sampler and the end of a step run on the device as
// the engine runs them, and the tokens come out of the ring.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>

#include <cstring>
#include <limits>
#include <tuple>

#include "bindings/kernels/bindings.h"
#include "bindings/kernels/gpu_call.h"
#include "bindings/options.h"
#include "device/memory.h"
#include "engine/gpu_token_loop.h"
#include "gpu/sampling/choose.h"
#include "ops/draft_rules.h"

using namespace nanobind::literals;

namespace lb::kernels {
namespace {

template <class T>
T* zeros(Call& call, size_t count) {
  return static_cast<T*>(call.zeros(count * sizeof(T)));
}

// A step's fields, each as an array over the steps.
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

// Tokens and parents of a tree, the root's first.
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

nb::dict sample(PythonPack& pack, FloatMatrix logits, In<int32_t, 1> prompt, int ring_capacity, bool with_append,
                std::optional<In<uint32_t, 1>> mask, const std::optional<TreeArrays>& tree, int first,
                int replay_length, const nb::kwargs& named) {
  const SamplingParams params = sampling_params_of(named);
  const size_t steps = logits.shape(0);
  const int vocab = size(logits, 1), n_prompt = size(prompt, 0), capacity = n_prompt + int(steps);
  LB_CHECK(params.n_top <= kMaxTopLogprobs, kInvalid, "logprobs is at most ", kMaxTopLogprobs);
  LB_CHECK(!mask || size(*mask, 0) == mask_words(vocab), kInvalid, "a mask of ", size(*mask, 0), " words");
  Call call(pack);
  SampleOptions options = sample_options_of(params);
  options.has_mask = mask.has_value();
  std::vector<float> bias(params.logit_bias.empty() ? 0 : vocab);
  for (const auto& [id, value] : params.logit_bias)
    bias[id] = value <= -100 ? -std::numeric_limits<float>::infinity() : value;
  std::vector<int32_t> history(capacity, -1);
  std::copy_n(prompt.data(), n_prompt, history.begin());
  const SampleState state{.draws = 0, .n_tokens = n_prompt};

  Sample op{.logits = nullptr,
            .options = call.in(&options, 1),
            .bias = bias.empty() ? nullptr : call.in(bias),
            .mask = mask ? call.in(mask->data(), mask->size()) : nullptr,
            .counts = zeros<TokenCounts>(call, vocab),
            .history = call.in_out(history.data(), history.size()),
            .state = call.in_out(&state, 1),
            .result = call.out<Sampled>(1),
            .vocab = vocab,
            .capacity = capacity};
  const CountWindow window{
      .options = op.options, .state = op.state, .history = op.history, .counts = op.counts, .capacity = capacity};
  pack.run(gpu::choose(window, pack.target()), window);

  const gpu::Buffer ring(pack.device(), ring_capacity * sizeof(Sampled) + sizeof(uint32_t), gpu::Buffer::Kind::kPinned);
  std::memset(ring.data(), 0, ring.size());
  const auto* slots = reinterpret_cast<Sampled*>(ring.data());
  auto* written = reinterpret_cast<uint32_t*>(ring.data() + ring_capacity * sizeof(Sampled));
  constexpr int kPositions = 3, kDraftPositions = 37;
  const int32_t before[5 + kPositions] = {-1, 0, 0, 0, 7};  // token, the append's four, positions
  int32_t* numbers = call.in_out(before, std::size(before));
  const NextToken next{.sampled = op.result,
                       .ring = {.slots = const_cast<Sampled*>(slots), .written = written, .capacity = ring_capacity},
                       .n_written = zeros<uint32_t>(call, 1),
                       .token = numbers,
                       .n_past = with_append ? numbers + 1 : nullptr,
                       .key_buffer = numbers + 2,
                       .n_accepted = numbers + 3,
                       .accepted = numbers + 4,
                       .positions = numbers + 5,
                       .n_positions = kPositions};
  void* scratch = call.zeros(gpu::sample_scratch_bytes(vocab));
  const float* all_logits = call.in(logits);
  std::vector<Sampled> results;
  nb::object accept = nb::none();
  if (tree) {
    const Draft draft = draft_of(*tree);
    LB_CHECK(size_t(draft.rows) == steps && ring_capacity >= int(steps), kInvalid, "a walk has logits for each of the ",
             draft.rows, " rows, and a ring for as many; got ", steps, " and ", ring_capacity);
    op.logits = all_logits;
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
                        .token = numbers,
                        .accept = {.n_before = accepted,
                                   .n_past = with_append ? numbers + 1 : nullptr,
                                   .key_buffer = numbers + 2,
                                   .n_accepted = numbers + 3,
                                   .accepted = accepted + 2,
                                   .root = accepted + 1,
                                   .positions = accepted + 2 + kMaxTree,
                                   .n_positions = kDraftPositions}};
    const gpu::WalkLaunch launch = gpu::choose(walk, scratch, pack.target());
    pack.run(launch.launch, launch.params);
    pack.stream().synchronize();
    results.assign(slots, slots + __atomic_load_n(written, __ATOMIC_ACQUIRE));
    accept = call.read(accepted, none.size());
  }
  for (size_t step = tree ? steps : 0; step < steps; ++step) {
    op.logits = all_logits + step * vocab;
    const gpu::SampleLaunches launches = gpu::choose(op, scratch, pack.target());
    pack.run(launches.launch, launches.params);
    pack.run(gpu::choose(next, pack.target()), next);
    if ((step + 1) % ring_capacity != 0 && step + 1 < steps) continue;  // the host falls behind as far as it may
    pack.stream().synchronize();
    const uint32_t n = __atomic_load_n(written, __ATOMIC_ACQUIRE);
    LB_CHECK(n == step + 1, kInternal, "the ring says ", n, " tokens after ", step + 1);
    while (results.size() < n) results.push_back(slots[results.size() % ring_capacity]);
  }
  nb::dict result = dict_of(results, std::max(std::min(params.n_top, vocab), 0));
  result["numbers"] = call.read(numbers, size_t(5 + kPositions));
  result["accept"] = accept;
  result["counts"] = call.read(reinterpret_cast<const int32_t*>(op.counts), size_t(vocab), size_t(2));
  result["history"] = call.read(op.history, size_t(capacity));
  return result;
}

}  // namespace

void bind_gpu_sample(nb::module_& m) {
  m.def("sample", &sample, "pack"_a, "logits"_a, "prompt"_a, "ring_capacity"_a = 4, "with_append"_a = true,
        "mask"_a = nb::none(), "tree"_a = nb::none(), "first"_a = 0, "replay_length"_a = -1, "options"_a,
        "One token for each row of logits, and what the device then knows: a dict of arrays. With a tree (tokens, "
        "parents), the tokens of a walk down it from row `first`, whose rows the logits belong to; `accept` is then "
        "n_before, root, accepted[64] and positions[3, 37] of an AcceptPath.");
}

}  // namespace lb::kernels
