// Opening an engine: file -> model -> plan -> reservations.
#include "engine/engine.h"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <iomanip>
#include <iterator>
#include <sstream>

#include "base/error.h"
#include "base/system.h"
#include "engine/backend_cpu.h"
#include "engine/plan.h"
#include "speculation/planner.h"

namespace lb {
namespace {

// A hash of all that a saved session depends on: metadata, tensors with every byte, the rope's frequencies, and
// settings. The four chains of 8-byte words are independent, so that their products overlap. It tells files apart and
// resists no forger.
class Fingerprint {
 public:
  void add(const void* data, size_t bytes) {
    const auto* p = static_cast<const std::byte*>(data);
    add_word(bytes);
    size_t at = 0;
    for (; at + sizeof(chains_) <= bytes; at += sizeof(chains_))
      for (size_t i = 0; i < std::size(chains_); ++i) chains_[i] = mixed(chains_[i], word(p + at + 8 * i, 8));
    for (; at < bytes; at += 8) add_word(word(p + at, std::min<size_t>(8, bytes - at)));
  }
  template <class T>
  void add_value(const T& value) {
    add(&value, sizeof(value));
  }
  void add_layout(const ModelFile& file) {
    if (const GgufFile* gguf = file.gguf())
      for (const GgufEntry& entry : gguf->metadata.all()) {
        add(entry.key.data(), entry.key.size());
        add_value(entry.value.type());
        add_value(entry.value.element_type());
        add(entry.value.bytes().data(), entry.value.bytes().size());
      }
    if (const SafetensorsModel* folder = file.safetensors())
      add(folder->config_text.data(), folder->config_text.size());
    for (const TensorView& tensor : file.tensors().all()) {
      add(tensor.name.data(), tensor.name.size());
      add_value(tensor.type);
      for (int64_t n : tensor.shape) add_value(n);
    }
  }
  void add_weights(const ModelFile& file) {
    for (const TensorView& tensor : file.tensors().all()) add(tensor.data, tensor.bytes);
  }
  std::string hex() const {
    std::ostringstream out;
    out << std::hex << std::setfill('0');
    for (const uint64_t chain : chains_) out << std::setw(16) << mixed(chain, 0);
    return out.str();
  }

 private:
  static uint64_t word(const std::byte* p, size_t bytes) {
    uint64_t value = 0;
    std::memcpy(&value, p, bytes);
    return value;
  }
  // The multiplier is 2^64 divided by the golden ratio. The rotation carries high bits, which a product mixes best,
  // down.
  static uint64_t mixed(uint64_t chain, uint64_t value) { return std::rotl((chain ^ value) * 0x9e3779b97f4a7c15u, 29); }
  void add_word(uint64_t value) { chains_[0] = mixed(chains_[0], value); }

  uint64_t chains_[4] = {1, 2, 3, 4};
};

std::string fingerprint_of(const ModelFile& file, const std::optional<ModelFile>& draft_file, const Model& model,
                           const EngineOptions& options) {
  Fingerprint f;
  for (const ModelFile* each : {&file, draft_file ? &*draft_file : nullptr}) {
    if (each == nullptr) continue;
    f.add_layout(*each);
    f.add_weights(*each);
  }
  const std::string draft = options.draft_model();
  if (draft == "mtp") f.add(draft.data(), draft.size());
  f.add_value(options.activations);
  if (options.sparse_alpha() > 0) f.add_value(options.sparse_alpha());
  const RopeAngles& rope = model.rope();
  f.add(rope.inv_freq.data(), rope.inv_freq.size() * sizeof(float));
  f.add_value(rope.scale);
  return cat(model.info().architecture, "-", f.hex());
}

void check(const EngineOptions& options) {
  LB_CHECK(options.context >= 0, kInvalid, "context must be positive, got ", options.context);
  LB_CHECK(options.kv_tokens >= 0, kInvalid, "kv_tokens must be positive, got ", options.kv_tokens);
  LB_CHECK(options.sessions >= 1, kInvalid, "sessions must be positive, got ", options.sessions);
  LB_CHECK(options.kv_tokens == 0 || options.context <= options.kv_tokens, kInvalid, "kv_tokens = ", options.kv_tokens,
           " is less than one context of ", options.context, " tokens");
  LB_CHECK(options.prefill_chunk >= 0 && options.prefill_chunk <= 4096, kInvalid,
           "prefill_chunk must be between 1 and 4096, got ", options.prefill_chunk);
  LB_CHECK(options.draft_budget >= 0 && options.draft_budget < kMaxTree, kInvalid,
           "draft_budget must be between 1 and ", kMaxTree - 1, ", got ", options.draft_budget);
  LB_CHECK(options.score_rows >= 0 && options.score_rows <= kMaxKeyScoreRows, kInvalid,
           "score_rows must be between 0 and ", kMaxKeyScoreRows, ", got ", options.score_rows);
  LB_CHECK(options.sparse_alpha() >= 0 && options.sparse_alpha() <= 1, kInvalid, options.sparse_option(),
           " must be between 0 and 1, got ", options.sparse_alpha());
  LB_CHECK(options.score_rows > 0 ? options.sparse_prefill == 0 : options.prefill_sparse_alpha == 0, kInvalid,
           "sparse_prefill is for engines that generate, prefill_sparse_alpha for those that score prompts");
  LB_CHECK(!options.batch_invariant || !options.drafts(), kInvalid, "batch_invariant needs draft = none, got ",
           options.draft, ": rows of a tree take kernels of their own");
  LB_CHECK(options.score_rows == 0 || !options.drafts(), kInvalid,
           "an engine that scores prompts generates nothing: draft must be none, got ", options.draft);
}

// Checks the options and replaces the defaults that depend on machine and device, but for the context.
void resolve(EngineOptions& options, const DeviceSizes& sizes) {
  check(options);
  if (options.n_threads == 0) options.n_threads = usable_cores();
  LB_CHECK(options.n_threads >= 1 && options.n_threads <= 1024, kInvalid, "threads must be between 1 and 1024, got ",
           options.n_threads);
  LB_CHECK(options.path == DecodePath::kAuto || !sizes.maps_weights(), kUnsupported,
           "graph and megakernel are ways to decode on a GPU; the model is opened on ", sizes.name());
  if (options.prefill_chunk == 0) options.prefill_chunk = sizes.prefill_chunk();
}

// Opened files and the networks that point into them.
struct Loaded {
  ModelFile file;
  std::optional<ModelFile> draft_file;
  Models models;

  Loaded(const std::string& path, const EngineOptions& options, const DeviceSizes& sizes)
      : file(open_model_file(path)), models{.target = make_model(file), .draft = nullptr} {
    const std::string draft = options.draft_model();
    if (draft == "mtp") {
      models.draft = make_mtp(file, *models.target);
      LB_CHECK(models.draft != nullptr, kUnsupported, path, ": the file has no prediction block (MTP) to draft with");
    } else if (!draft.empty()) {
      draft_file = open_model_file(draft);
      models.draft = make_draft_model(*draft_file, *models.target);
    }
    if (sizes.maps_weights()) return;
    models.target->use_device_types();
    if (models.draft) models.draft->use_device_types();
  }
  size_t file_bytes() const {
    return file.tensors().total_bytes() + (draft_file ? draft_file->tensors().total_bytes() : 0);
  }
};

}  // namespace

std::string EngineOptions::draft_model() const {
  std::string_view name = draft;
  if (name.ends_with(kWithSuffix)) name.remove_suffix(kWithSuffix.size());
  return name == "none" || name == "suffix" ? "" : std::string(name);
}

std::vector<LayerShape> Models::layer_shapes() const {
  std::vector<LayerShape> shapes;
  for (const Network* network : networks())
    shapes.insert(shapes.end(), network->layer_shapes().begin(), network->layer_shapes().end());
  return shapes;
}

int Executor::step_rows(const EngineOptions& options) {
  const int chunk = std::max(options.prefill_chunk, 1);
  return options.score_rows > 0 ? chunk : std::min(chunk, kStepRows);
}

size_t Executor::planned_bytes(const Models& models, const EngineOptions& options, int max_rows) {
  Carver carver;
  carve_io(nullptr, carver, models, options, max_rows);
  return carver.used() + models.target->workspace_bytes(max_rows) +
         (models.draft ? models.draft->workspace_bytes(max_rows) : 0);
}

void Executor::carve_io(Executor* self, Carver& carver, const Models& models, const EngineOptions& options,
                        int max_rows) {
  int32_t* tokens = carver.take<int32_t>(max_rows);
  int32_t* positions = carver.take<int32_t>(3 * static_cast<size_t>(max_rows));
  const bool is_of_steps = max_rows == step_rows(options);
  int32_t* parents = carver.take<int32_t>(is_of_steps ? kMaxTree : 0);
  uint64_t* ancestors = carver.take<uint64_t>(is_of_steps ? kMaxTree : 0);
  PassInputs* pass = carver.take<PassInputs>(is_of_steps ? 1 : 0);
  float* logits = carver.take<float>(is_of_steps ? static_cast<size_t>(kLogitRows) * models.target->info().vocab : 0);
  int32_t* draft_n_past = models.draft ? carver.take<int32_t>(1) : nullptr;
  std::optional<SparseBlocks> sparse;
  if (options.sparse_prefill > 0 && max_rows == std::max(options.prefill_chunk, 1)) {
    const auto& [n_heads, n_kv_heads, head_dim] = models.target->attention();
    sparse =
        SparseBlocks::carve(carver, n_heads, n_kv_heads, head_dim, options.context, max_rows, options.sparse_prefill);
    sparse->no_past = carver.take<int32_t>(1);  // reserved memory is zero
  }
  if (self == nullptr) return;
  self->draft_n_past = draft_n_past;
  self->sparse = sparse;
  self->tokens = tokens;
  self->positions = positions;
  self->parents = parents;
  self->ancestors = ancestors;
  self->logits = logits;
  self->pass = pass;
}

Executor::Executor(const Models& models, const EngineOptions& options, int max_rows, Stream& stream,
                   std::recursive_mutex& mutex)
    : mutex(mutex),
      stream(&stream),
      max_rows(max_rows),
      memory(stream.reserve(planned_bytes(models, options, max_rows))) {
  Carver carver(*memory);
  carve_io(this, carver, models, options, max_rows);
  if (models.draft) {
    draft = models.draft->workspace(carver, max_rows);
    carver.take<std::byte>(models.draft->workspace_bytes(max_rows));  // workspace() carved from a copy
  }
  workspace = models.target->workspace(carver, max_rows);
}

Engine::Engine(ModelFile file, std::optional<ModelFile> draft_file, Models models,
               std::shared_ptr<const Backend> backend, EngineOptions options, MemoryPlan plan,
               const LoadProgress& progress)
    : file_(std::move(file)),
      draft_file_(std::move(draft_file)),
      models_(std::move(models)),
      backend_(std::move(backend)),
      options_(options),
      plan_(std::move(plan)),
      stream_(backend_->make_stream(models_.networks(), options_)),
      steps_(std::make_unique<Executor>(models_, options_, Executor::step_rows(options_), *stream_, mutex_)) {
  if (options_.prefill_chunk > steps_->max_rows) {
    prompts_ = std::make_unique<Executor>(models_, options_, options_.prefill_chunk, *stream_, mutex_);
    prompts_->logits = steps_->logits;  // which no step comes between
  }
  if (options_.score_rows == 0)
    pages_ = std::make_shared<PagePool>(layer_shapes(), state_options(), n_pages(options_.kv_tokens), *stream_);
  weights_ = backend_->load(*models_.target, options_, *stream_, progress);
  if (options_.drafts_suffixes()) outputs_ = std::make_shared<EarlierOutputs>(kEarlierTokens);
  if (models_.draft) draft_weights_ = backend_->load(*models_.draft, options_, *stream_, progress);
}

size_t Engine::executor_bytes(const Models& models, const EngineOptions& options) {
  const int steps = Executor::step_rows(options);
  return Executor::planned_bytes(models, options, steps) +
         (options.prefill_chunk > steps ? Executor::planned_bytes(models, options, options.prefill_chunk) : 0);
}

void Engine::check_ids(std::span<const int32_t> ids) const {
  const int vocab = model().info().vocab;
  for (size_t i = 0; i < ids.size(); ++i)
    LB_CHECK(ids[i] >= 0 && ids[i] < vocab, kInvalid, "token ", i, " is ", ids[i], "; the vocabulary has ", vocab,
             " tokens");
  LB_CHECK(ids.size() <= static_cast<size_t>(options_.context), kInvalid, ids.size(),
           " tokens do not fit the context of ", options_.context, "; load the model with a larger context");
}

const std::string& Engine::fingerprint() const {
  std::call_once(fingerprint_once_,
                 [this] { fingerprint_ = fingerprint_of(file_, draft_file_, *models_.target, options_); });
  return fingerprint_;
}

std::string Engine::layout() const {
  Fingerprint f;
  f.add_layout(file_);
  if (draft_file_) f.add_layout(*draft_file_);
  return f.hex();
}

std::optional<StepCosts> Engine::step_costs() const {
  const std::lock_guard lock(costs_mutex_);
  return step_costs_;
}

bool Engine::draft_may_pay() const {
  const std::optional<StepCosts> costs = step_costs();
  return models_.draft == nullptr || !costs || DraftPlanner(*costs, true, options_.draft_budget).model_may_pay();
}

void Engine::set_step_costs(const StepCosts& costs) const {
  DraftPlanner check(costs, false);  // throws where they are not valid
  const std::lock_guard lock(costs_mutex_);
  step_costs_ = costs;
}

void Engine::forward(const Executor& executor, Append append, const Taps* taps) const {
  const DraftWorkspace& ws = executor.draft;
  Stream& stream = *executor.stream;
  const int rows = static_cast<int>(append.tokens.size());
  if (models_.draft) append.outputs = {models_.draft->taps(), ws.taps};
  models_.target->forward(append, executor.workspace, options_.activations, stream, taps);
  if (models_.draft)
    models_.draft->context({ws.taps, append.tokens.data(), append.positions.data(), rows, append.segments}, ws,
                           options_.activations, stream);
}

StateOptions Engine::state_options() const { return lb::state_options(options_); }

MemoryPlan Engine::plan(const std::string& path, EngineOptions& options, const DeviceSizes& sizes) {
  resolve(options, sizes);
  const Loaded loaded(path, options, sizes);
  sizes.check(loaded.models, options);
  return make_plan(loaded.models, sizes, loaded.file_bytes(), options);
}

std::shared_ptr<Engine> Engine::open(const std::string& path, EngineOptions options, std::unique_ptr<Backend> backend,
                                     const LoadProgress& progress) {
  if (backend == nullptr) backend = cpu_backend();
  resolve(options, backend->sizes());
  Loaded loaded(path, options, backend->sizes());
  backend->sizes().check(loaded.models, options);
  MemoryPlan plan = make_plan(loaded.models, backend->sizes(), loaded.file_bytes(), options);
  loaded.models.target->expand(options.n_threads, progress);
  if (loaded.models.draft) loaded.models.draft->expand(options.n_threads, progress);
  // A forked child has none of the threads and no usable GPU context: joining or freeing them there would hang. The
  // child's copy stays until the child ends.
  const auto destroy = [owner = getpid()](const Engine* engine) {
    if (getpid() == owner) delete engine;
  };
  const std::shared_ptr<const Backend> shared = std::move(backend);  // outlives an engine that fails to load
  std::shared_ptr<Engine> engine;
  shared->with_memory([&] {
    engine = {new Engine(std::move(loaded.file), std::move(loaded.draft_file), std::move(loaded.models), shared,
                         options, std::move(plan), progress),
              destroy};
    engine->executor().stream->wait();
  });
  return engine;
}

}  // namespace lb
