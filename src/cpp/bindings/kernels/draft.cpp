// Runs a draft model along with a sequence of its target, step by step, for tests.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "base/error.h"
#include "bindings/arrays.h"
#include "bindings/kernels/bindings.h"
#include "engine/tree_memory.h"
#include "models/draft_model.h"
#include "state/snapshot.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lb::kernels {
namespace {

template <class T, int kDims>
using In = nb::ndarray<const T, nb::ndim<kDims>, nb::c_contig, nb::device::cpu>;

class Drafting {
 public:
  explicit Drafting(std::shared_ptr<const Engine> engine)
      : engine_(std::move(engine)), state_(engine_->state_options(), engine_->state_parts(), engine_->pools()) {
    LB_CHECK(engine_->draft_model() != nullptr && engine_->drafting_shards().size() == 1, kInvalid,
             "the engine was opened without a draft model, or a model split by tensors");
    const auto carve = [&](Carver carver) {
      tree_ = TreeMemory(carver, nullptr, engine_->draft_model(), engine_->options());
      return carver.used();
    };
    memory_ = drafting_stream().reserve(carve({}));
    carve(Carver(*memory_));
  }

  const DraftModel& draft() const { return engine_->draft_on(shard()); }
  int n_tokens() const { return state_.n_tokens(); }

  // (hidden [rows, hidden], taps [rows, n_taps * hidden])
  nb::tuple append(const In<int32_t, 1>& ids, const In<int32_t, 2>& positions, const In<int32_t, 1>& parents,
                   const In<uint64_t, 1>& ancestors) {
    const std::lock_guard lock(io().turn);
    const int rows = static_cast<int>(ids.size());
    LB_CHECK(rows <= io().max_rows, kInvalid, "an append has up to ", io().max_rows, " rows, got ", rows);
    const bool is_tree = parents.size() > 0;
    state_.begin_append(rows, is_tree);
    const size_t n = rows;
    std::vector<Segment> segments(engine_->n_shards());
    std::vector<Append> appends(segments.size());
    for (int i = 0; i < engine_->n_shards(); ++i) {
      const PassBuffers& own = engine_->buffers_of(i, io());
      own.stream->upload(own.tokens, ids.data(), ids.nbytes());
      own.stream->upload(own.positions, positions.data(), positions.nbytes());
      if (is_tree) {
        own.stream->upload(own.parents, parents.data(), parents.nbytes());
        own.stream->upload(own.ancestors, ancestors.data(), ancestors.nbytes());
      }
      const Tree tree = is_tree ? Tree{own.parents, own.ancestors} : Tree{};
      segments[i] = {0, rows, tree, state_.n_past(i), &state_, i};
      appends[i] = {.tokens = {own.tokens, n}, .positions = {own.positions, 3 * n}, .segments = {&segments[i], 1}};
    }
    engine_->forward(io(), appends);
    engine_->forward_drafts(io(), appends[0]);
    state_.end_append();
    return nb::make_tuple(download(io().workspace.y, {n, hidden()}, *io().stream),
                          download(io().draft.taps, {n, draft().taps().size() * hidden()}, *io().stream));
  }
  void commit(const std::vector<int32_t>& path) {
    const std::lock_guard lock(io().turn);
    state_.commit(path);
  }
  void rewind(int n_tokens) { state_.rewind(n_tokens); }

  // Tokens are not tracked here, so zeros are saved.
  nb::bytes save() {
    const std::lock_guard lock(io().turn);
    const std::vector<int32_t> tokens(n_tokens());
    const auto bytes = save_snapshot(state_, tokens, engine_->fingerprint());
    return nb::bytes(bytes.data(), bytes.size());
  }
  void load(const nb::bytes& data) {
    const std::lock_guard lock(io().turn);
    load_snapshot({reinterpret_cast<const std::byte*>(data.c_str()), data.size()}, state_,
                  engine_->model().info().vocab, engine_->fingerprint(), "snapshot");
  }

  // (ids [depth, k], logprobs [depth, k], hidden [depth, hidden])
  nb::tuple propose(int32_t root, int depth) {
    const std::lock_guard lock(io().turn);
    LB_CHECK(depth >= 1 && depth <= draft().max_depth(), kInvalid, "a draft has 1 to ", draft().max_depth(),
             " tokens, not ", depth);
    const int n_positions = draft().max_depth() + 1;
    std::vector<int32_t> positions(3 * n_positions);
    for (size_t i = 0; i < positions.size(); ++i) positions[i] = state_.n_tokens() + static_cast<int>(i) % n_positions;
    Stream& stream = drafting_stream();
    const DraftWorkspace& ws = engine_->buffers_of(shard(), io()).draft;
    stream.upload(tree_.root.token, &root, sizeof root);
    const int32_t last_slot = state_.n_tokens() - 1;
    stream.upload(tree_.root.positions, positions.data(), positions.size() * sizeof(int32_t));
    stream.upload(tree_.root.last_slot, &last_slot, sizeof last_slot);
    state_.begin_draft(n_positions);
    draft().propose(tree_.root, depth, state_, ws, engine_->options().activations, stream);
    const size_t rows = depth, columns = draft().n_candidates();
    return nb::make_tuple(download(ws.ids, {rows, columns}, stream), download(ws.logprobs, {rows, columns}, stream),
                          download(ws.hidden, {rows, hidden()}, stream));
  }

 private:
  PassBuffers& io() const { return engine_->buffers(); }
  int shard() const { return engine_->drafting_shards().front(); }  // where the draft model is
  Stream& drafting_stream() const { return state_.stream_of(shard()); }
  size_t hidden() const { return engine_->model().info().hidden; }

  template <class T>
  static Array<T, 2> download(const T* from, std::initializer_list<size_t> shape, Stream& stream) {
    std::vector<T> values(shape.begin()[0] * shape.begin()[1]);
    if (from != nullptr) stream.download(values.data(), from, values.size() * sizeof(T));
    return to_numpy<2>(std::move(values), shape);
  }

  std::shared_ptr<const Engine> engine_;
  SequenceState state_;
  std::unique_ptr<Memory> memory_;
  TreeMemory tree_;
};

}  // namespace

void bind_draft(nb::module_& m) {
  nb::class_<Drafting>(m, "Drafting", "A draft model beside one sequence of its target, step by step, for tests.")
      .def(
          "__init__", [](Drafting* self, std::shared_ptr<Engine> engine) { new (self) Drafting(std::move(engine)); },
          "engine"_a)
      .def_prop_ro("kind", [](const Drafting& d) { return d.draft().kind(); })
      .def_prop_ro("max_depth", [](const Drafting& d) { return d.draft().max_depth(); })
      .def_prop_ro("taps",
                   [](const Drafting& d) { return std::vector(d.draft().taps().begin(), d.draft().taps().end()); })
      .def_prop_ro("n_tokens", &Drafting::n_tokens)
      .def("append", &Drafting::append, "ids"_a, "positions"_a, "parents"_a, "ancestors"_a,
           "Rows of the target and of the draft: (hidden [rows, hidden], taps [rows, n_taps * hidden]).")
      .def("commit", &Drafting::commit, "path"_a)
      .def("rewind", &Drafting::rewind, "n_tokens"_a)
      .def("save", &Drafting::save)
      .def("load", &Drafting::load, "data"_a)
      .def("propose", &Drafting::propose, "root"_a, "depth"_a,
           "The likeliest tokens of each depth: (ids [depth, k], logprobs [depth, k], hidden [depth, hidden]).");
}

}  // namespace lb::kernels
