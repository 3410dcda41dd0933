#include "engine/prompt_scorer.h"

#include <algorithm>

#include "base/error.h"
#include "base/process_owned.h"
#include "engine/backend_cpu.h"
#include "engine/open_models.h"
#include "engine/plan.h"
#include "engine/plan_fit.h"
#include "ops/key_scores.h"
#include "ops/select_blocks.h"

namespace lb {
namespace {

// The last rows of a prompt, whose attention is dense: the scoring rows and the rows just before them.
constexpr int kDenseRows = 2 * kSparseBlock;

// Rows times keys of a chunk on the CPU. Others wait for the end of a chunk, whose attention takes time per key.
constexpr int64_t kChunkWork = 1 << 21;

SparseWish sparse_wish(const ScorerOptions& options) { return {options.prefill_sparse_alpha, "prefill_sparse_alpha"}; }

void resolve(ScorerOptions& options, const DeviceSizes& sizes) {
  check_model_options(options);
  LB_CHECK(options.score_rows >= 1 && options.score_rows <= kMaxKeyScoreRows, kInvalid,
           "score_rows must be between 1 and ", kMaxKeyScoreRows, ", got ", options.score_rows);
  LB_CHECK(options.prefill_sparse_alpha >= 0 && options.prefill_sparse_alpha <= 1, kInvalid,
           "prefill_sparse_alpha must be between 0 and 1, got ", options.prefill_sparse_alpha);
  resolve_model_options(options, sizes);
}

template <class Carve>
size_t counted(Carve&& carve) {
  Carver counter;
  carve(counter);
  return counter.used();
}

}  // namespace

std::vector<LayerShape> PromptScorer::state_shapes(const Model& model) {
  std::vector<LayerShape> shapes;
  for (const LayerShape& shape : model.layer_shapes()) {
    if (std::ranges::any_of(shapes, [&](const LayerShape& other) { return other.index() == shape.index(); })) continue;
    shapes.push_back(shape);
    if (auto* kv = std::get_if<KvShape>(&shapes.back())) kv->window = 0;  // layers with and without a window share it
  }
  return shapes;
}

void PromptScorer::carve_chunk(Carver& carver, const Model& model, const ScorerOptions& options, Buffers& buffers) {
  buffers.tokens = carver.take<int32_t>(options.prefill_chunk);
  buffers.workspace = model.workspace(carver, options.prefill_chunk);
  carver.take<std::byte>(model.workspace_bytes(options.prefill_chunk));  // workspace() carved from a copy
}

void PromptScorer::carve_prompt(Carver& carver, const Model& model, const ScorerOptions& options, Buffers& buffers) {
  const size_t context = options.context, rows = options.score_rows;
  buffers.x = carver.take<float>(context * model.info().hidden);
  buffers.positions = carver.take<int32_t>(3 * context);
  buffers.scores = carver.take<float>(rows * context);
  const auto& [n_heads, n_kv_heads, head_dim, key_tail] = model.attention();
  buffers.parts = carver.take<float>(2 * kKeyScoreParts * rows * n_heads);
  if (options.prefill_sparse_alpha > 0)
    buffers.sparse = SparseBlocks::carve(carver, n_heads, n_kv_heads, head_dim, options.context, options.prefill_chunk,
                                         options.prefill_sparse_alpha);
}

StreamNeeds PromptScorer::stream_needs(const Models& models, const ScorerOptions& options) {
  return {.networks = models.networks(),
          .rows = options.prefill_chunk,
          .context = options.context,
          .n_threads = options.threads,
          .isa = options.isa,
          .activations = options.activations,
          .is_sparse = options.prefill_sparse_alpha > 0,
          .score_rows = options.score_rows};
}

// The sizes of a scorer with these options.
struct PromptScorer::Sizes {
  const Models& models;
  ScorerOptions options;
  const ScratchBytes& scratch_bytes;

  Sizes at(int context, const KvTypes& kv) const {
    Sizes other = *this;
    other.options.context = context;
    other.options.prefill_chunk = std::min(options.prefill_chunk, context);
    other.options.kv = kv;
    return other;
  }
  int kv_pages() const { return n_pages(options.context); }
  StateSizes state() const {
    return {state_shapes(*models.target), state_options(options), models.target->info().n_layers, kv_pages(), 0};
  }
  size_t chunk() const {
    return counted([&](Carver& carver) {
      Buffers buffers{};
      carve_chunk(carver, *models.target, options, buffers);
    });
  }
  size_t prompt() const {
    return counted([&](Carver& carver) {
      Buffers buffers{};
      carve_prompt(carver, *models.target, options, buffers);
    });
  }
  size_t scratch() const { return scratch_bytes(options.prefill_chunk, options.context); }
  size_t needed() const {
    const std::vector<LayerShape> shapes = state_shapes(*models.target);
    const StateOptions state = state_options(options);
    return SequenceState::planned_bytes(shapes, state) +
           PageMemory::planned_bytes(shapes, KvRows::kAll, state, kv_pages()) + chunk() + prompt() + scratch();
  }
};

MemoryPlan PromptScorer::make_plan(const Models& models, const DeviceSizes& sizes, size_t file_bytes,
                                   ScorerOptions& options) {
  const ScratchBytes scratch = sizes.scratch_of(stream_needs(models, options));
  const Sizes asked{models, options, scratch};
  const int max_context = models.target->info().max_context;
  const ContextDemand demand{
      .models = models,
      .sizes = sizes,
      .weights = WeightSizes(models, sizes, file_bytes),
      .fixed_bytes = 0,
      .needed_bytes = [&](int context, const KvTypes& kv) { return asked.at(context, kv).needed(); },
      .token_bytes = [&](const KvTypes& kv) { return asked.at(max_context, kv).state().target.token_bytes; }};
  const FittedContext fitted = fit_context(demand, options);
  MemoryPlan plan = start_plan(demand, fitted, options);
  const Sizes settled{models, options, scratch};
  plan.kv_tokens = settled.kv_pages() * kPageTokens;
  plan.entries = demand.weights.device_entries();
  const auto add = [&](std::vector<PlanEntry> more) { std::ranges::move(more, std::back_inserter(plan.entries)); };
  add(settled.state().entries(options.kv, plan.kv_tokens));
  add({
      {"activations", settled.chunk(), cat(options.prefill_chunk, " rows")},
      {"kernel scratch", settled.scratch(), sizes.scratch_detail(stream_needs(models, options))},
      {"prompt", settled.prompt(),
       cat("rows of ", options.context, " tokens between two layers, scores of ", options.score_rows, " rows, F32",
           options.prefill_sparse_alpha > 0 ? "; selected key blocks" : ""),
       true},
  });
  add(demand.weights.host_entries());
  std::erase_if(plan.entries, [](const PlanEntry& entry) { return entry.bytes == 0; });
  return plan;
}

namespace {

void check_scorer(const std::string& path, const Model& model) {
  LB_CHECK(model.is_plain(), kUnsupported, path, ": ", model.info().architecture,
           " cannot score prompts, because its layers differ in their attention or have norms after their branches; "
           "use a model of the family qwen3, llama or qwen35");
}

}  // namespace

MemoryPlan PromptScorer::plan(const std::string& path, ScorerOptions& options, const DeviceSizes& sizes) {
  resolve(options, sizes);
  const OpenModels opened(path, "", sizes);
  check_scorer(path, *opened.models.target);
  sizes.check(sparse_wish(options), *opened.models.target, options.kv);
  return make_plan(opened.models, sizes, opened.file_bytes(), options);
}

std::shared_ptr<PromptScorer> PromptScorer::open(const std::string& path, ScorerOptions options,
                                                 std::unique_ptr<Backend> given, const LoadProgress& progress) {
  const std::shared_ptr<const Backend> backend = given ? std::move(given) : cpu_backend();
  resolve(options, backend->sizes());
  OpenModels opened(path, "", backend->sizes());
  check_scorer(path, *opened.models.target);
  backend->sizes().check(sparse_wish(options), *opened.models.target, options.kv);
  const std::lock_guard opening(backend->device().opening());
  MemoryPlan plan = make_plan(opened.models, backend->sizes(), opened.file_bytes(), options);
  opened.models.target->set_context(options.context);
  opened.models.target->fill_copies(options.threads, progress);
  const std::shared_ptr<PromptScorer> scorer = process_owned(
      new PromptScorer(std::move(opened.file), std::move(opened.models), backend, options, std::move(plan)));
  scorer->load(progress);
  return scorer;
}

PromptScorer::PromptScorer(ModelFile file, Models models, std::shared_ptr<const Backend> backend, ScorerOptions options,
                           MemoryPlan plan)
    : file_(std::move(file)),
      models_(std::move(models)),
      options_(options),
      plan_(std::move(plan)),
      backend_(std::move(backend)) {}

void PromptScorer::load(const LoadProgress& progress) {
  DeviceTurn turn(backend_->device(), nullptr);
  const std::lock_guard lock(turn);
  with_memory([&] {
    shard_.emplace(backend_, stream_needs(models_, options_));
    Stream& stream = shard_->stream();
    shard_->load(*models_.target, options_.threads, nullptr, progress);
    state_.emplace(state_shapes(model()), state_options(options_), stream);
    const auto carve = [&](Carver carver) {
      carve_chunk(carver, model(), options_, buffers_);
      carve_prompt(carver, model(), options_, buffers_);
      return carver.used();
    };
    memory_ = stream.reserve(carve({}));
    carve(Carver(*memory_));
  });
}

void PromptScorer::with_memory(const std::function<void()>& work) const {
  const auto complete = [&] {
    try {
      work();
    } catch (...) {
      if (shard_) shard_->stream().wait();
      throw;
    }
    shard_->stream().wait();
  };
  LentMemory* lent = backend_->lent();
  lent ? Device::with_loan(*lent, complete) : complete();
}

std::vector<int> PromptScorer::scored_layers(std::span<const int> layers) const {
  const Model& model = this->model();
  std::vector<int> with_attention;
  for (int i = 0; i < model.info().n_layers; ++i)
    if (model.has_attention(i)) with_attention.push_back(i);
  if (layers.empty()) return with_attention;
  for (size_t i = 0; i < layers.size(); ++i) {
    LB_CHECK(i == 0 || layers[i] > layers[i - 1], kInvalid, "layers must ascend; layer ", layers[i], " follows layer ",
             layers[i - 1]);
    LB_CHECK(std::ranges::binary_search(with_attention, layers[i]), kInvalid, "layer ", layers[i],
             " has no attention to score with: of the model's ", model.info().n_layers, " layers, ",
             with_attention.size(), " have attention, from layer ", with_attention.front(), " to layer ",
             with_attention.back());
  }
  return {layers.begin(), layers.end()};
}

int PromptScorer::state_layer(int layer) const {
  const size_t kind = model().layer_shapes()[layer].index();
  return static_cast<int>(std::ranges::find(state_->layers(), kind, &LayerShape::index) - state_->layers().begin());
}

// Rows of the chunk that begins at row `first`. They depend on nothing else, so that equal prompts have equal scores.
int PromptScorer::chunk_rows(int first) const {
  if (backend_->device().name() != "cpu") return options_.prefill_chunk;
  const int64_t rows = kChunkWork / (first + 1) / kSparseBlock * kSparseBlock;
  return static_cast<int>(
      std::clamp<int64_t>(rows, std::min(kSparseBlock, options_.prefill_chunk), options_.prefill_chunk));
}

// Calls visit(first, rows) for each chunk. The dense rows have separate chunks.
template <class Visit>
void PromptScorer::for_chunks(int n_tokens, const Interrupted& interrupted, Visit&& visit) {
  const int first_dense = std::max(0, n_tokens - kDenseRows);
  for (int first = 0, rows; first < n_tokens; first += rows) {
    if (interrupted && interrupted()) fail(ErrorCode::kCancelled, "cancelled by the caller");
    const bool is_sparse = buffers_.sparse && first < first_dense;
    rows = std::min(chunk_rows(first), (is_sparse ? first_dense : n_tokens) - first);
    if (backend_->lent() == nullptr) shard_->turn().let_others();  // a lender has no weights now
    visit(first, rows);
  }
}

void PromptScorer::embed(std::span<const int32_t> ids, const Interrupted& interrupted) {
  Stream& stream = shard_->stream();
  const size_t hidden = model().info().hidden;
  std::vector<int32_t> positions;
  for_chunks(static_cast<int>(ids.size()), interrupted, [&](int first, int rows) {
    const size_t n = rows;
    positions.resize(3 * n);
    for (size_t i = 0; i < 3 * n; ++i) positions[i] = first + static_cast<int>(i % n);
    stream.upload(buffers_.positions + size_t{3} * first, positions.data(), 3 * n * sizeof(int32_t));
    stream.upload(buffers_.tokens, ids.data() + first, n * sizeof(int32_t));
    model().embed(buffers_.tokens, rows, buffers_.x + first * hidden, stream);
  });
}

// Runs send(rows) over the chunks of the prompt, as appends to an empty state.
template <class Send>
void PromptScorer::run_chunks(int layer, int n_tokens, const Interrupted& interrupted, Send&& send) {
  const size_t hidden = model().info().hidden;
  state_->reset();
  for_chunks(n_tokens, interrupted, [&](int first, int rows) {
    state_->begin_append(rows, false);
    send(first, LayerRows{.x = buffers_.x + first * hidden,
                          .positions = buffers_.positions + size_t{3} * first,
                          .n = rows,
                          .state_layer = state_layer(layer)});
    state_->end_append();
    state_->commit_chain(rows);
  });
}

void PromptScorer::score_layer(int layer, int n_tokens, const Interrupted& interrupted) {
  const int first_scored = std::max(0, n_tokens - options_.score_rows);
  run_chunks(layer, n_tokens, interrupted, [&](int first, const LayerRows& rows) {
    const int from = std::max(first, first_scored);
    ScoredRows scored;
    if (first + rows.n > from)
      scored = {.first_row = from - first,
                .rows = first + rows.n - from,
                .scores = buffers_.scores + size_t(from - first_scored) * n_tokens,
                .parts = buffers_.parts,
                .stride = n_tokens};
    model().score_layer(layer, rows, scored, *state_, buffers_.workspace, options_.activations, shard_->stream());
  });
}

void PromptScorer::run_layer(int layer, int n_tokens, const Interrupted& interrupted) {
  run_chunks(layer, n_tokens, interrupted, [&](int first, const LayerRows& rows) {
    const bool is_sparse = buffers_.sparse && first < n_tokens - kDenseRows;
    model().run_layer(layer, rows, is_sparse ? &*buffers_.sparse : nullptr, *state_, buffers_.workspace,
                      options_.activations, shard_->stream());
  });
}

std::vector<float> PromptScorer::score(std::span<const int32_t> ids, std::span<const int> wanted,
                                       const Interrupted& interrupted, const Progress& progress) {
  const std::vector<int> layers = scored_layers(wanted);
  LB_CHECK(!ids.empty(), kInvalid, "the prompt has no tokens to score");
  check_token_ids(ids, model().info().vocab, options_.context);
  const std::lock_guard one(mutex_);
  const std::lock_guard turn(shard_->turn());
  std::vector<float> scores;
  with_memory([&] { scores = computed_scores(ids, layers, interrupted, progress); });
  return scores;
}

std::vector<float> PromptScorer::computed_scores(std::span<const int32_t> ids, std::span<const int> layers,
                                                 const Interrupted& interrupted, const Progress& progress) {
  const int n_tokens = static_cast<int>(ids.size()), rows = std::min(n_tokens, options_.score_rows);
  Stream& stream = shard_->stream();
  const size_t n_scores = static_cast<size_t>(rows) * n_tokens;
  embed(ids, interrupted);
  state_->upload_page_tables();  // a loan begins with zeroed memory
  stream.zero(buffers_.scores, n_scores * sizeof(float));
  const int last = layers.back();
  for (int layer = 0; layer <= last; ++layer) {
    if (std::ranges::binary_search(layers, layer)) score_layer(layer, n_tokens, interrupted);
    if (layer < last) run_layer(layer, n_tokens, interrupted);
    if (!progress) continue;
    stream.wait();
    progress(static_cast<int>(long(n_tokens) * (layer + 1) / (last + 1)), n_tokens);
  }
  std::vector<float> by_row(n_scores), scores(n_tokens);
  stream.download(by_row.data(), buffers_.scores, n_scores * sizeof(float));
  for (int t = 0; t < rows; ++t)
    for (int j = 0; j < n_tokens; ++j) scores[j] += by_row[size_t(t) * n_tokens + j];
  for (float& score : scores) score /= static_cast<float>(rows);
  return scores;
}

}  // namespace lb
