// Opening an engine: file -> model -> plan -> reservations.
#include "engine/engine.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/system.h"
#include "engine/plan.h"

namespace lb {
namespace {

// FNV-1a over what a session's bytes depend on: every tensor's name, type and shape, a sample of its data, and the
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
  LB_CHECK(options.prefill_chunk >= 1 && options.prefill_chunk <= 4096, kInvalid,
           "prefill_chunk must be between 1 and 4096, got ", options.prefill_chunk);
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
  float* logits = carver.take<float>(static_cast<size_t>(kLogitRows) * model.info().vocab);
  if (self == nullptr) return;
  self->tokens = tokens;
  self->positions = positions;
  self->logits = logits;
}

Executor::Executor(const Model& model, const EngineOptions& options, const StreamOptions& stream_options)
    : stream(stream_options), max_rows(std::max(options.prefill_chunk, 1)), arena(planned_bytes(model, max_rows)) {
  Carver carver(arena);
  carve_io(this, carver, model, max_rows);
  workspace = model.workspace(carver, max_rows);
}

Engine::Engine(ModelFile file, std::unique_ptr<Model> model, EngineOptions options, MemoryPlan plan)
    : file_(std::move(file)),
      model_(std::move(model)),
      options_(options),
      plan_(std::move(plan)),
      fingerprint_(fingerprint_of(file_, *model_, options_)),
      executor_(std::make_unique<Executor>(*model_, options_, stream_options(*model_, options_))) {}

std::shared_ptr<Engine> Engine::open(const std::string& path, EngineOptions options) {
  check(options);
  if (options.n_threads == 0) options.n_threads = usable_cores();
  LB_CHECK(options.n_threads >= 1 && options.n_threads <= 1024, kInvalid, "threads must be between 1 and 1024, got ",
           options.n_threads);
  ModelFile file = open_model_file(path);
  std::unique_ptr<Model> model = make_model(file);
  MemoryPlan plan = make_plan(*model, file.tensors().total_bytes(), available_memory(), options);
  return std::shared_ptr<Engine>(new Engine(std::move(file), std::move(model), options, std::move(plan)));
}

}  // namespace lb
