// A draft model beside a sequence of its target, step by step, for tests.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>

#include "base/error.h"
#include "bindings/arrays.h"
#include "bindings/bindings.h"
#include "engine/engine.h"
#include "models/draft_model.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lb {
namespace {

template <class T, int kDims>
using In = nb::ndarray<const T, nb::ndim<kDims>, nb::c_contig, nb::device::cpu>;

class Drafting {
 public:
  // path: of the draft model; empty: the block inside the target's file.
  Drafting(std::shared_ptr<const Engine> engine, const std::string& path) : engine_(std::move(engine)) {
    if (path.empty()) {
      draft_ = make_mtp(engine_->file(), model());
      LB_CHECK(draft_ != nullptr, kInvalid, engine_->file().path, ": there is no prediction block in this file");
    } else {
      file_.emplace(open_model_file(path));
      draft_ = make_draft_model(*file_, model());
    }
    const EngineOptions& options = engine_->options();
    stream_ = engine_->backend().make_stream({&model(), draft_.get()}, options);
    weights_ = engine_->backend().load(*draft_, options, *stream_, {});
    Carver counter;
    carve(counter);
    memory_ = stream_->reserve(counter.used());
    Carver carver(*memory_);
    carve(carver);
    std::vector<LayerShape> layers(model().layer_shapes().begin(), model().layer_shapes().end());
    layers.insert(layers.end(), draft_->layer_shapes().begin(), draft_->layer_shapes().end());
    state_.emplace(std::move(layers), engine_->state_options(), *stream_);
  }

  const DraftModel& draft() const { return *draft_; }

  // Computes rows as Session::append() does, and the draft's: (hidden [rows, hidden], taps [rows, n_taps * hidden]).
  nb::tuple append(const In<int32_t, 1>& ids, const In<int32_t, 2>& positions, const In<int32_t, 1>& parents,
                   const In<uint64_t, 1>& ancestors) {
    const int rows = static_cast<int>(ids.size());
    LB_CHECK(rows <= max_rows(), kInvalid, "an append has up to ", max_rows(), " rows, got ", rows);
    const bool is_tree = parents.size() > 0;
    state_->begin_append(rows, is_tree ? Tree{parents.data(), ancestors.data()} : Tree{});
    stream_->upload(tokens_, ids.data(), ids.nbytes());
    stream_->upload(positions_, positions.data(), positions.nbytes());
    if (is_tree) {
      stream_->upload(parents_, parents.data(), parents.nbytes());
      stream_->upload(ancestors_, ancestors.data(), ancestors.nbytes());
    }
    const Tree tree = is_tree ? Tree{parents_, ancestors_} : Tree{};
    const size_t n = rows;
    model().forward({.tokens = {tokens_, n},
                     .positions = {positions_, 3 * n},
                     .tree = tree,
                     .outputs = {draft_->taps(), draft_workspace_.taps}},
                    *state_, workspace_, engine_->options().activations, *stream_);
    draft_->context({draft_workspace_.taps, workspace_.y, tokens_, positions_, tree, rows}, *state_, draft_workspace_,
                    engine_->options().activations, *stream_);
    state_->end_append();
    const size_t hidden = model().info().hidden, tapped = draft_->taps().size() * hidden;
    return nb::make_tuple(download(workspace_.y, {n, hidden}), download(draft_workspace_.taps, {n, tapped}));
  }
  void commit(const std::vector<int32_t>& path) { state_->commit(path); }
  void rewind(int n_tokens) { state_->rewind(n_tokens); }
  int n_tokens() const { return state_->n_tokens(); }

  // (ids [depth, k], logprobs [depth, k], hidden [depth, hidden])
  nb::tuple propose(int32_t root, int depth, int k) {
    const int n_positions = draft_->max_depth() + 1;
    std::vector<int32_t> positions(3 * n_positions);
    for (size_t i = 0; i < positions.size(); ++i) positions[i] = state_->n_tokens() + static_cast<int>(i) % n_positions;
    stream_->upload(tokens_, &root, sizeof root);
    stream_->upload(positions_, positions.data(), positions.size() * sizeof(int32_t));
    state_->begin_draft();
    draft_->propose({tokens_, positions_}, depth, k, *state_, draft_workspace_, engine_->options().activations,
                    *stream_);
    const size_t rows = depth, columns = k;
    return nb::make_tuple(download(draft_workspace_.ids, {rows, columns}),
                          download(draft_workspace_.logprobs, {rows, columns}),
                          download(draft_workspace_.hidden, {rows, static_cast<size_t>(model().info().hidden)}));
  }

 private:
  const Model& model() const { return engine_->model(); }
  int max_rows() const { return engine_->options().prefill_chunk; }

  void carve(Carver& carver) {
    const size_t rows = std::max(max_rows(), draft_->max_depth() + 1);
    tokens_ = carver.take<int32_t>(rows);
    positions_ = carver.take<int32_t>(3 * rows);
    parents_ = carver.take<int32_t>(kMaxTree);
    ancestors_ = carver.take<uint64_t>(kMaxTree);
    std::byte* target = carver.take<std::byte>(model().workspace_bytes(max_rows()));
    std::byte* draft = carver.take<std::byte>(draft_->workspace_bytes(max_rows()));
    if (target == nullptr) return;
    workspace_ = model().workspace(Carver(Memory(target, model().workspace_bytes(max_rows()))), max_rows());
    draft_workspace_ = draft_->workspace(Carver(Memory(draft, draft_->workspace_bytes(max_rows()))), max_rows());
  }

  template <class T>
  Array<T, 2> download(const T* from, std::initializer_list<size_t> shape) {
    std::vector<T> values(shape.begin()[0] * shape.begin()[1]);
    if (from != nullptr) stream_->download(values.data(), from, values.size() * sizeof(T));
    return to_numpy<2>(std::move(values), shape);
  }

  std::shared_ptr<const Engine> engine_;
  std::optional<ModelFile> file_;
  std::unique_ptr<DraftModel> draft_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Memory> weights_, memory_;
  int32_t *tokens_, *positions_, *parents_;
  uint64_t* ancestors_;
  Workspace workspace_;
  DraftWorkspace draft_workspace_;
  std::optional<SequenceState> state_;
};

}  // namespace

void bind_draft(nb::module_& m) {
  nb::class_<Drafting>(m, "Drafting", "A draft model beside one sequence of its target, step by step, for tests.")
      .def(
          "__init__",
          [](Drafting* self, std::shared_ptr<Engine> engine, const std::string& path) {
            new (self) Drafting(std::move(engine), path);
          },
          "engine"_a, "path"_a = "")
      .def_prop_ro("kind", [](const Drafting& d) { return d.draft().kind(); })
      .def_prop_ro("max_depth", [](const Drafting& d) { return d.draft().max_depth(); })
      .def_prop_ro("taps",
                   [](const Drafting& d) { return std::vector(d.draft().taps().begin(), d.draft().taps().end()); })
      .def_prop_ro("n_tokens", &Drafting::n_tokens)
      .def("append", &Drafting::append, "ids"_a, "positions"_a, "parents"_a, "ancestors"_a,
           "Rows of the target and of the draft: (hidden [rows, hidden], taps [rows, n_taps * hidden]).")
      .def("commit", &Drafting::commit, "path"_a)
      .def("rewind", &Drafting::rewind, "n_tokens"_a)
      .def("propose", &Drafting::propose, "root"_a, "depth"_a, "k"_a,
           "The k likeliest tokens of each depth: (ids [depth, k], logprobs [depth, k], hidden [depth, hidden]).");
}

}  // namespace lb
