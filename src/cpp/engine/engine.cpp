// Opening an engine: file -> model -> plan -> reservations.
#include "engine/engine.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/system.h"
#include "engine/backend_cpu.h"
#include "engine/plan.h"

namespace lb {
namespace {

// FNV-1a over all that a saved session depends on: every tensor's name, type, shape and first 64 bytes, and the
// settings.
class Fingerprint {
 public:
  void add(const void* data, size_t bytes) {
    const auto* p = static_cast<const unsigned char*>(data);
    for (size_t i = 0; i < bytes; ++i) hash_ = (hash_ ^ p[i]) * 0x100000001b3u;
  }
  template <class T>
  void add_value(const T& value) {
    add(&value, sizeof(value));
  }
  std::string hex() const {
    std::ostringstream out;
    out << std::hex << hash_;
    return out.str();
  }

 private:
  uint64_t hash_ = 0xcbf29ce484222325u;
};

std::string fingerprint_of(const ModelFile& file, const Model& model, const EngineOptions& options) {
  Fingerprint f;
  for (const TensorView& tensor : file.tensors().all()) {
    f.add(tensor.name.data(), tensor.name.size());
    f.add_value(tensor.type);
    for (int64_t n : tensor.shape) f.add_value(n);
    f.add(tensor.data, std::min<size_t>(tensor.bytes, 64));
  }
  f.add_value(options.activations);
  return cat(model.info().architecture, "-", f.hex());
}

void check(const EngineOptions& options) {
  LB_CHECK(options.context >= 0, kInvalid, "context must be positive, got ", options.context);
  LB_CHECK(options.prefill_chunk >= 0 && options.prefill_chunk <= 4096, kInvalid,
           "prefill_chunk must be between 1 and 4096, got ", options.prefill_chunk);
  LB_CHECK(options.draft_budget >= 0 && options.draft_budget < kMaxTree, kInvalid,
           "draft_budget must be between 1 and ", kMaxTree - 1, ", got ", options.draft_budget);
  LB_CHECK(options.kv == DType::kF32 || options.kv == DType::kF16 || options.kv == DType::kBF16, kInvalid, "kv type ",
           name(options.kv), " is not supported; supported: f16, bf16, f32");
}

}  // namespace

size_t Executor::planned_bytes(const Model& model, int max_rows) {
  Carver carver;
  carve_io(nullptr, carver, model, max_rows);
  return carver.used() + model.workspace_bytes(max_rows);
}

void Executor::carve_io(Executor* self, Carver& carver, const Model& model, int max_rows) {
  int32_t* tokens = carver.take<int32_t>(max_rows);
  int32_t* positions = carver.take<int32_t>(3 * static_cast<size_t>(max_rows));
  int32_t* parents = carver.take<int32_t>(kMaxTree);
  uint64_t* ancestors = carver.take<uint64_t>(kMaxTree);
  float* logits = carver.take<float>(static_cast<size_t>(kLogitRows) * model.info().vocab);
  if (self == nullptr) return;
  self->tokens = tokens;
  self->positions = positions;
  self->parents = parents;
  self->ancestors = ancestors;
  self->logits = logits;
}

Executor::Executor(const Model& model, const EngineOptions& options, std::unique_ptr<Stream> owned_stream)
    : stream(std::move(owned_stream)),
      max_rows(std::max(options.prefill_chunk, 1)),
      memory(stream->reserve(planned_bytes(model, max_rows))) {
  Carver carver(*memory);
  carve_io(this, carver, model, max_rows);
  workspace = model.workspace(carver, max_rows);
}

Engine::Engine(ModelFile file, std::unique_ptr<Model> model, std::unique_ptr<Backend> backend, EngineOptions options,
               MemoryPlan plan, const LoadProgress& progress)
    : file_(std::move(file)),
      model_(std::move(model)),
      backend_(std::move(backend)),
      options_(options),
      plan_(std::move(plan)),
      fingerprint_(fingerprint_of(file_, *model_, options_)),
      executor_(std::make_unique<Executor>(*model_, options_, backend_->make_stream({model_.get()}, options_))),
      weights_(backend_->load(*model_, options_, *executor_->stream, progress)) {}

std::shared_ptr<Engine> Engine::open(const std::string& path, EngineOptions options, std::unique_ptr<Backend> backend,
                                     const LoadProgress& progress) {
  check(options);
  if (options.n_threads == 0) options.n_threads = usable_cores();
  LB_CHECK(options.n_threads >= 1 && options.n_threads <= 1024, kInvalid, "threads must be between 1 and 1024, got ",
           options.n_threads);
  if (backend == nullptr) backend = cpu_backend();
  LB_CHECK(options.path == DecodePath::kAuto || !backend->maps_weights(), kUnsupported,
           "graph and megakernel are ways to decode on a GPU; the model is opened on ", backend->name());
  if (options.prefill_chunk == 0) options.prefill_chunk = backend->prefill_chunk();
  ModelFile file = open_model_file(path);
  std::unique_ptr<Model> model = make_model(file);
  MemoryPlan plan = make_plan(*model, *backend, file.tensors().total_bytes(), options);
  return std::shared_ptr<Engine>(
      new Engine(std::move(file), std::move(model), std::move(backend), options, std::move(plan), progress));
}

}  // namespace lb
