// Weights stay in the file's mapping. Scratch is that of the largest CPU op.
#include "engine/backend_cpu.h"

#include <algorithm>

#include "base/error.h"
#include "base/system.h"
#include "cpu/cpu_stream.h"
#include "engine/engine.h"
#include "ops/key_scores.h"
#include "ops/select_blocks.h"

namespace lb {
namespace {

CpuStreamOptions stream_options(const Networks& networks, const EngineOptions& options) {
  const int rows = std::max(options.prefill_chunk, kMaxTree);
  CpuStreamOptions stream{.n_threads = options.n_threads, .isa = options.isa};
  size_t &shared = stream.shared_scratch_bytes, &thread = stream.thread_scratch_bytes;
  for (const Network* network : networks) {
    const auto& [n_heads, n_kv_heads, head_dim] = network->attention();
    shared = std::max({shared, linear_shared_scratch(rows, network->max_n_in()),
                       attention_shared_scratch(rows, n_heads, head_dim, options.context)});
    thread = std::max({thread, linear_thread_scratch(network->max_n_in()),
                       attention_thread_scratch(head_dim, n_heads, n_kv_heads),
                       key_scores_thread_scratch(options.score_rows, n_heads, n_kv_heads, head_dim),
                       options.sparse_alpha() > 0 ? select_blocks_thread_scratch(sparse_blocks(options.context)) : 0});
    for (const LayerShape& shape : network->layer_shapes())
      if (const auto* r = std::get_if<RecurrentShape>(&shape))
        thread = std::max(thread, delta_thread_scratch(r->dk, r->dv));
  }
  return stream;
}

class CpuSizes final : public DeviceSizes {
 public:
  explicit CpuSizes(size_t free_bytes) : free_bytes_(free_bytes) {}
  std::string name() const override { return "cpu"; }
  size_t free_bytes() const override { return free_bytes_ > 0 ? free_bytes_ : available_memory(); }
  size_t reserved_bytes() const override { return 0; }
  std::string memory_name() const override { return "memory"; }
  int prefill_chunk() const override { return 512; }
  void check(const Models&, const EngineOptions&) const override {}
  bool maps_weights() const override { return true; }
  size_t weight_bytes(Network& network) const override { return network.vector_bytes() + network.expanded_bytes(); }
  size_t scratch_bytes(const Networks& networks, const EngineOptions& options) const override {
    return CpuStream::planned_bytes(stream_options(networks, options));
  }
  std::string scratch_detail(const EngineOptions& options) const override {
    return cat(options.n_threads, " threads, ", lb::name(options.isa));
  }
  size_t loop_bytes(const Model&, const EngineOptions&) const override { return 0; }
  size_t step_bytes(const Models&, const EngineOptions&) const override { return 0; }

 private:
  size_t free_bytes_;
};

class CpuBackend final : public Backend {
 public:
  const DeviceSizes& sizes() const override { return sizes_; }
  std::unique_ptr<Stream> make_stream(const Networks& networks, const EngineOptions& options) const override {
    return std::make_unique<CpuStream>(stream_options(networks, options));
  }
  std::unique_ptr<TokenLoop> make_loop(const Engine&, SequenceState&, const StepRing*) const override {
    return nullptr;
  }
  std::unique_ptr<Memory> load(Network&, const EngineOptions&, Stream&, const LoadProgress&) const override {
    return nullptr;
  }
  void with_memory(const std::function<void()>& work) const override { work(); }
  std::vector<gpu::KernelTime> time_kernels(Stream&, const std::function<void()>&) const override {
    fail(ErrorCode::kUnsupported, "the CPU has no kernels to time one by one: a profile needs a GPU");
  }

 private:
  CpuSizes sizes_{0};
};

}  // namespace

std::unique_ptr<DeviceSizes> cpu_sizes(size_t free_bytes) { return std::make_unique<CpuSizes>(free_bytes); }
std::unique_ptr<Backend> cpu_backend() { return std::make_unique<CpuBackend>(); }

}  // namespace lb
