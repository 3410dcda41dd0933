// A decode loop without a model: each step gets given logits, and the device runs the sampler and the end of the step
// as in the engine. Tokens are read from the ring.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <deque>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "bindings/arrays.h"
#include "bindings/kernels/bindings.h"
#include "bindings/kernels/stream_arrays.h"
#include "bindings/options.h"
#include "bindings/python_pack.h"
#include "engine/gpu_token_loop.h"
#include "ops/draft_rules.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lb::kernels {
namespace {

template <class T, int kDims>
using In = nb::ndarray<const T, nb::ndim<kDims>, nb::c_contig, nb::device::cpu>;

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
  const int rows = int(tokens.size());
  LB_CHECK(rows >= 1 && rows <= kMaxTree && int(parents.size()) == rows, kInvalid, "a tree has 1 to ", kMaxTree,
           " tokens and as many parents; got ", rows, " and ", parents.size());
  Draft draft{};
  drafting::start(draft, tokens(0));
  for (int i = 1; i < rows; ++i) {
    LB_CHECK(parents(i) >= 0 && parents(i) < i, kInvalid, "row ", i, " has parent ", parents(i));
    drafting::add(draft, tokens(i), parents(i), 0);
  }
  return draft;
}

// A sequence and the memory of its steps.
class Sequence {
 public:
  Sequence(GpuStream& stream, const SamplingParams& params, In<int32_t, 1> prompt, const float* logits, int steps,
           int vocab, int ring_capacity, bool with_append, const std::optional<In<uint32_t, 1>>& mask)
      : stream_(stream),
        arrays_(stream),
        ring_(stream.pack().device(), ring_capacity * sizeof(Sampled) + sizeof(uint32_t), gpu::Buffer::Kind::kPinned) {
    const int n_prompt = int(prompt.size()), capacity = n_prompt + steps;
    SampleOptions options = sample_options_of(params);
    options.has_mask = mask.has_value();
    std::vector<float> bias(params.logit_bias.empty() ? 0 : vocab);
    for (const auto& [id, value] : params.logit_bias)
      bias[id] = value <= -100 ? -std::numeric_limits<float>::infinity() : value;
    std::vector<int32_t> history(capacity, -1);
    std::copy_n(prompt.data(), n_prompt, history.begin());
    const SampleState state{.draws = 0, .n_tokens = n_prompt};
    Sampled unset;
    std::memset(&unset, 0xff, sizeof unset);
    op = {.logits = arrays_.copy(logits, size_t(steps) * vocab),
          .options = arrays_.copy(&options, 1),
          .bias = bias.empty() ? nullptr : arrays_.copy(bias),
          .mask = mask ? arrays_.copy(mask->data(), mask->size()) : nullptr,
          .counts = arrays_.zeros<TokenCounts>(vocab),
          .history = arrays_.copy(history),
          .state = arrays_.copy(&state, 1),
          .result = arrays_.copy(&unset, 1),
          .vocab = vocab,
          .capacity = capacity};
    stream.run(CountWindow{
        .options = op.options, .state = op.state, .history = op.history, .counts = op.counts, .capacity = capacity});

    std::memset(ring_.data(), 0, ring_.size());
    auto* written = reinterpret_cast<uint32_t*>(ring_.data() + ring_capacity * sizeof(Sampled));
    const int32_t before[kNumbers] = {-1, 0, 0, 0, 7};  // token, four append numbers, positions
    int32_t* numbers = arrays_.copy(before);
    next = {.sampled = op.result,
            .ring = {.slots = reinterpret_cast<Sampled*>(ring_.data()), .written = written, .capacity = ring_capacity},
            .n_written = arrays_.zeros<uint32_t>(1),
            .token = numbers,
            .n_past = with_append ? numbers + 1 : nullptr,
            .key_buffer = numbers + 2,
            .n_accepted = numbers + 3,
            .accepted = numbers + 4,
            .positions = numbers + 5,
            .n_positions = kNumbers - 5};
    scratch = arrays_.zeros<std::byte>(gpu::sample_scratch_bytes(vocab));
  }

  // Appends the ring's tokens since the last call.
  void take() {
    stream_.wait();
    const uint32_t n = __atomic_load_n(next.ring.written, __ATOMIC_ACQUIRE);
    while (results_.size() < n) results_.push_back(next.ring.slots[results_.size() % next.ring.capacity]);
  }
  // Walks a tree whose rows the logits belong to; returns n_before, root, accepted, positions and last_slot of its
  // AcceptPath.
  nb::object walk(const Draft& draft, int first, int replay_length) {
    constexpr int kDraftPositions = 37;
    const std::vector<int32_t> none(2 + kMaxTree + 3 * kDraftPositions + 1, -1);
    int32_t* accepted = arrays_.copy(none);
    const WalkTree walk{.choice = op,
                        .tokens = arrays_.copy(draft.tokens, draft.rows),
                        .parents = arrays_.copy(draft.parents, draft.rows),
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
                                   .last_slot = accepted + none.size() - 1,
                                   .n_positions = kDraftPositions}};
    stream_.run(walk, scratch);
    take();
    return read(accepted, {none.size()});
  }
  nb::dict result(int n_top) {
    nb::dict result = dict_of(results_, n_top);
    result["numbers"] = read(next.token, {kNumbers});
    result["counts"] = read(reinterpret_cast<const int32_t*>(op.counts), {size_t(op.vocab), 2});
    result["history"] = read(op.history, {size_t(op.capacity)});
    return result;
  }
  size_t n_taken() const { return results_.size(); }

  Sample op;
  NextToken next;
  std::byte* scratch;

 private:
  static constexpr int kNumbers = 8;

  nb::object read(const int32_t* from, std::initializer_list<size_t> shape) {
    size_t count = 1;
    for (size_t size : shape) count *= size;
    auto values = std::make_unique<int32_t[]>(count);
    stream_.download(values.get(), from, count * sizeof(int32_t));
    return to_numpy(std::move(values), shape);
  }

  GpuStream& stream_;
  StreamArrays arrays_;
  gpu::Buffer ring_;
  std::vector<Sampled> results_;
};

std::vector<nb::dict> sample(PythonPack& pack, In<float, 3> logits, In<int32_t, 1> prompt, int ring_capacity,
                             bool with_append, std::optional<In<uint32_t, 1>> mask,
                             const std::optional<TreeArrays>& tree, int first, int replay_length,
                             const nb::kwargs& named) {
  const SamplingParams params = sampling_params_of(named);
  const int n = int(logits.shape(0)), steps = int(logits.shape(1)), vocab = int(logits.shape(2));
  LB_CHECK(n >= 1 && (n == 1 || !tree), kInvalid, n, " sequences", tree ? " walk a tree" : "");
  LB_CHECK(params.logprobs <= kMaxTopLogprobs, kInvalid, "logprobs is at most ", kMaxTopLogprobs);
  LB_CHECK(!mask || int(mask->size()) == mask_words(vocab), kInvalid, "a mask of ", mask->size(), " words");
  GpuStream stream(pack.shared(), 0, 0);
  stream.record(&pack.launches());
  std::deque<Sequence> sequences;
  for (int i = 0; i < n; ++i)
    sequences.emplace_back(stream, params, prompt, logits.data() + size_t(i) * steps * vocab, steps, vocab,
                           ring_capacity, with_append, mask);
  nb::object accept = nb::none();
  if (tree) {
    const Draft draft = draft_of(*tree);
    LB_CHECK(draft.rows == steps && ring_capacity >= steps, kInvalid, "a walk has logits for each of the ", draft.rows,
             " rows, and a ring for as many; got ", steps, " and ", ring_capacity);
    accept = sequences[0].walk(draft, first, replay_length);
  }
  for (int step = tree ? steps : 0; step < steps; ++step) {
    std::vector<GpuStream::ScratchedSample> samples;
    std::vector<NextToken> ends;
    for (Sequence& own : sequences) {
      samples.push_back({own.op, own.scratch});
      ends.push_back(own.next);
      own.op.logits += vocab;
    }
    stream.run(std::span<const GpuStream::ScratchedSample>(samples));
    stream.run(std::span<const NextToken>(ends));
    if ((step + 1) % ring_capacity != 0 && step + 1 < steps) continue;  // the host lags as far as the ring allows
    for (Sequence& own : sequences) {
      own.take();
      LB_CHECK(int(own.n_taken()) == step + 1, kInternal, "the ring says ", own.n_taken(), " tokens after ", step + 1);
    }
  }
  std::vector<nb::dict> all;
  for (Sequence& own : sequences) all.push_back(own.result(std::max(std::min(params.logprobs, vocab), 0)));
  all[0]["accept"] = accept;
  return all;
}

}  // namespace

void bind_gpu_sample(nb::module_& m) {
  m.def("sample", &sample, "pack"_a, "logits"_a, "prompt"_a, "ring_capacity"_a = 4, "with_append"_a = true,
        "mask"_a = nb::none(), "tree"_a = nb::none(), "first"_a = 0, "replay_length"_a = -1, "options"_a,
        "One token for each step of logits [sequences, steps, vocab], and what the device then knows: a dict of arrays "
        "for each sequence. Launches are for all sequences where the pack has kernels for that. With a tree (tokens, "
        "parents), the tokens of a walk down it from row `first`, whose rows the logits belong to; `accept` is then "
        "n_before, root, accepted[64], positions[3, 37] and last_slot of an AcceptPath.");
}

}  // namespace lb::kernels
