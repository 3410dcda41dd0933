#include "engine/prompt_scorer.h"

#include <algorithm>

#include "base/error.h"
#include "ops/key_scores.h"
#include "ops/select_blocks.h"

namespace lb {
namespace {

// The last rows of a prompt, whose attention is dense: those that score, and what they look at first.
constexpr int kDenseRows = 2 * kSparseBlock;

}  // namespace

std::vector<LayerShape> PromptScorer::state_shapes(const Model& model) {
  std::vector<LayerShape> shapes;
  for (const LayerShape& shape : model.layer_shapes())
    if (std::ranges::none_of(shapes, [&](const LayerShape& other) { return other.index() == shape.index(); }))
      shapes.push_back(shape);
  return shapes;
}

PromptScorer::Buffers PromptScorer::carve(Carver& carver, const Model& model, const EngineOptions& options) {
  const size_t context = options.context, rows = options.score_rows;
  Buffers buffers;
  buffers.x = carver.take<float>(context * model.info().hidden);
  buffers.positions = carver.take<int32_t>(3 * context);
  buffers.scores = carver.take<float>(rows * context);
  const auto& [n_heads, n_kv_heads, head_dim] = model.attention();
  buffers.parts = carver.take<float>(2 * kKeyScoreParts * rows * n_heads);
  if (options.sparse_alpha() > 0)
    buffers.sparse = SparseBlocks::carve(carver, n_heads, n_kv_heads, head_dim, options.context, options.prefill_chunk,
                                         options.sparse_alpha());
  return buffers;
}

size_t PromptScorer::planned_bytes(const Model& model, const EngineOptions& options) {
  if (options.score_rows == 0) return 0;
  Carver counter;
  carve(counter, model, options);
  return counter.used();
}

PromptScorer::PromptScorer(std::shared_ptr<const Engine> engine) : engine_(std::move(engine)) {
  const EngineOptions& options = engine_->options();
  LB_CHECK(options.score_rows > 0, kInvalid,
           "the model is open to generate. Open it with score_rows >= 1 to score prompts");
  with_memory([&] {
    Stream& stream = *engine_->executor().stream;
    state_.emplace(state_shapes(engine_->model()), engine_->state_options(), stream);
    memory_ = stream.reserve(planned_bytes(engine_->model(), options));
  });
  Carver carver(*memory_);
  buffers_ = carve(carver, engine_->model(), options);
}

// A lender takes its memory back when `work` ends, so no op may be in flight then.
void PromptScorer::with_memory(const std::function<void()>& work) const {
  Stream& stream = *engine_->executor().stream;
  engine_->backend().with_memory([&] {
    try {
      work();
    } catch (...) {
      stream.wait();
      throw;
    }
    stream.wait();
  });
}

std::vector<int> PromptScorer::scored_layers(std::span<const int> layers) const {
  const Model& model = engine_->model();
  std::vector<int> with_attention;
  for (int i = 0; i < model.info().n_layers; ++i)
    if (model.has_attention(i)) with_attention.push_back(i);
  if (layers.empty()) return with_attention;
  for (size_t i = 0; i < layers.size(); ++i) {
    LB_CHECK(i == 0 || layers[i] > layers[i - 1], kInvalid, "layers to score must ascend; ", layers[i], " comes after ",
             layers[i - 1]);
    LB_CHECK(std::ranges::binary_search(with_attention, layers[i]), kInvalid, "layer ", layers[i],
             " cannot score: the model has ", model.info().n_layers, " layers, and those with attention are ",
             with_attention.front(), " to ", with_attention.back(), ", ", with_attention.size(), " of them");
  }
  return {layers.begin(), layers.end()};
}

int PromptScorer::state_layer(int layer) const {
  const size_t kind = engine_->model().layer_shapes()[layer].index();
  return static_cast<int>(std::ranges::find(state_->layers(), kind, &LayerShape::index) - state_->layers().begin());
}

// Calls visit(first, rows) for each chunk, with the executor locked. The dense rows have chunks of their own.
template <class Visit>
void PromptScorer::for_chunks(int n_tokens, const Interrupted& interrupted, Visit&& visit) {
  Executor& executor = engine_->executor();
  const int first_dense = std::max(0, n_tokens - kDenseRows);
  for (int first = 0, rows; first < n_tokens; first += rows) {
    if (interrupted && interrupted()) fail(ErrorCode::kCancelled, "cancelled by the caller");
    const bool is_sparse = buffers_.sparse && first < first_dense;
    rows = std::min(executor.max_rows, (is_sparse ? first_dense : n_tokens) - first);
    const std::lock_guard lock(executor.mutex);
    visit(first, rows);
  }
}

void PromptScorer::embed(std::span<const int32_t> ids, const Interrupted& interrupted) {
  Executor& executor = engine_->executor();
  const size_t hidden = engine_->model().info().hidden;
  std::vector<int32_t> positions;
  for_chunks(static_cast<int>(ids.size()), interrupted, [&](int first, int rows) {
    const size_t n = rows;
    positions.resize(3 * n);
    for (size_t i = 0; i < 3 * n; ++i) positions[i] = first + static_cast<int>(i % n);
    executor.stream->upload(buffers_.positions + size_t{3} * first, positions.data(), 3 * n * sizeof(int32_t));
    executor.stream->upload(executor.tokens, ids.data() + first, n * sizeof(int32_t));
    engine_->model().embed(executor.tokens, rows, buffers_.x + first * hidden, *executor.stream);
  });
}

// Runs send(rows) over the chunks of the prompt, as appends to an empty state.
template <class Send>
void PromptScorer::run_chunks(int layer, int n_tokens, const Interrupted& interrupted, Send&& send) {
  const size_t hidden = engine_->model().info().hidden;
  {
    const std::lock_guard lock(engine_->executor().mutex);
    state_->reset();
  }
  for_chunks(n_tokens, interrupted, [&](int first, int rows) {
    state_->begin_append(rows, {});
    send(first, LayerRows{.x = buffers_.x + first * hidden,
                          .positions = buffers_.positions + size_t{3} * first,
                          .n = rows,
                          .state_layer = state_layer(layer)});
    state_->end_append();
    state_->commit_chain(rows);
  });
}

void PromptScorer::score_layer(int layer, int n_tokens, const Interrupted& interrupted) {
  const Executor& executor = engine_->executor();
  const int first_scored = std::max(0, n_tokens - engine_->options().score_rows);
  run_chunks(layer, n_tokens, interrupted, [&](int first, const LayerRows& rows) {
    const int from = std::max(first, first_scored);
    ScoredRows scored;
    if (first + rows.n > from)
      scored = {.first_row = from - first,
                .rows = first + rows.n - from,
                .scores = buffers_.scores + size_t(from - first_scored) * n_tokens,
                .parts = buffers_.parts,
                .stride = n_tokens};
    engine_->model().score_layer(layer, rows, scored, *state_, executor.workspace, engine_->options().activations,
                                 *executor.stream);
  });
}

void PromptScorer::run_layer(int layer, int n_tokens, const Interrupted& interrupted) {
  const Executor& executor = engine_->executor();
  run_chunks(layer, n_tokens, interrupted, [&](int first, const LayerRows& rows) {
    const bool is_sparse = buffers_.sparse && first < n_tokens - kDenseRows;
    engine_->model().run_layer(layer, rows, is_sparse ? &*buffers_.sparse : nullptr, *state_, executor.workspace,
                               engine_->options().activations, *executor.stream);
  });
}

std::vector<float> PromptScorer::score(std::span<const int32_t> ids, std::span<const int> wanted,
                                       const Interrupted& interrupted, const Progress& progress) {
  const std::vector<int> layers = scored_layers(wanted);
  LB_CHECK(!ids.empty(), kInvalid, "the prompt has no tokens to score");
  engine_->check_ids(ids);
  std::vector<float> scores;
  with_memory([&] { scores = computed_scores(ids, layers, interrupted, progress); });
  return scores;
}

std::vector<float> PromptScorer::computed_scores(std::span<const int32_t> ids, std::span<const int> layers,
                                                 const Interrupted& interrupted, const Progress& progress) {
  const int n_tokens = static_cast<int>(ids.size()), rows = std::min(n_tokens, engine_->options().score_rows);
  Stream& stream = *engine_->executor().stream;
  const size_t n_scores = static_cast<size_t>(rows) * n_tokens;
  embed(ids, interrupted);
  {
    const std::lock_guard lock(engine_->executor().mutex);
    state_->upload_page_tables();  // a loan begins with zeroed memory
    stream.zero(buffers_.scores, n_scores * sizeof(float));
  }
  const int last = layers.back();
  for (int layer = 0; layer <= last; ++layer) {
    if (std::ranges::binary_search(layers, layer)) score_layer(layer, n_tokens, interrupted);
    if (layer < last) run_layer(layer, n_tokens, interrupted);
    if (!progress) continue;
    stream.wait();
    progress(static_cast<int>(long(n_tokens) * (layer + 1) / (last + 1)), n_tokens);
  }
  std::vector<float> by_row(n_scores), scores(n_tokens);
  {
    const std::lock_guard lock(engine_->executor().mutex);
    stream.download(by_row.data(), buffers_.scores, n_scores * sizeof(float));
  }
  for (int t = 0; t < rows; ++t)
    for (int j = 0; j < n_tokens; ++j) scores[j] += by_row[size_t(t) * n_tokens + j];
  for (float& score : scores) score /= static_cast<float>(rows);
  return scores;
}

}  // namespace lb
