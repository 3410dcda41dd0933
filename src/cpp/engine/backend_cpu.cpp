// Weights stay in the file's mapping. Scratch is that of the largest CPU op.
#include "engine/backend_cpu.h"

#include <algorithm>

#include "base/error.h"
#include "base/system.h"
#include "cpu/cpu_stream.h"
#include "engine/engine.h"

namespace lb {
namespace {

CpuStreamOptions stream_options(const Model& model, const EngineOptions& options) {
  const ModelInfo& info = model.info();
  const int rows = std::max(options.prefill_chunk, kMaxTree), max_n_in = model.max_n_in();
  CpuStreamOptions stream{.n_threads = options.n_threads, .isa = options.isa};
  stream.shared_scratch_bytes = std::max(linear_shared_scratch(rows, max_n_in),
                                         attention_shared_scratch(rows, info.n_heads, info.head_dim, options.context));
  stream.thread_scratch_bytes =
      std::max(linear_thread_scratch(max_n_in), attention_thread_scratch(info.head_dim, info.n_heads, info.n_kv_heads));
  for (const LayerShape& shape : model.layer_shapes())
    if (const auto* r = std::get_if<RecurrentShape>(&shape))
      stream.thread_scratch_bytes = std::max(stream.thread_scratch_bytes, delta_thread_scratch(r->dk, r->dv));
  return stream;
}

class CpuBackend final : public Backend {
 public:
  std::string name() const override { return "cpu"; }
  size_t available_bytes() const override { return available_memory(); }
  std::string memory_name() const override { return "memory"; }
  int prefill_chunk() const override { return 512; }
  bool maps_weights() const override { return true; }
  size_t weight_bytes(Model& model) const override { return model.vector_bytes(); }
  size_t scratch_bytes(const Model& model, const EngineOptions& options) const override {
    return CpuStream::planned_bytes(stream_options(model, options));
  }
  std::string scratch_detail(const EngineOptions& options) const override {
    return cat(options.n_threads, " threads, ", lb::name(options.isa));
  }
  std::unique_ptr<Stream> make_stream(const Model& model, const EngineOptions& options) const override {
    return std::make_unique<CpuStream>(stream_options(model, options));
  }
  std::unique_ptr<TokenLoop> make_loop(const Engine&, SequenceState&) const override { return nullptr; }
  size_t loop_bytes(const Model&, const EngineOptions&) const override { return 0; }
  size_t step_bytes(const Model&, const EngineOptions&) const override { return 0; }
  std::unique_ptr<Memory> load(Model&, const EngineOptions&, Stream&, const LoadProgress&) const override {
    return nullptr;
  }
  std::vector<gpu::KernelTime> time_kernels(Stream&, const std::function<void()>&) const override {
    fail(ErrorCode::kUnsupported, "the CPU has no kernels to time one by one: a profile needs a GPU");
  }
};

}  // namespace

std::unique_ptr<Backend> cpu_backend() { return std::make_unique<CpuBackend>(); }

}  // namespace lb
