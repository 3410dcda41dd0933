// The CPU backend. Weights stay in the file's mapping; scratch is sized for the largest CPU op.
#include "engine/backend_cpu.h"

#include <algorithm>

#include "base/error.h"
#include "base/system.h"
#include "cpu/cpu_stream.h"
#include "engine/engine.h"
#include "ops/experts.h"
#include "ops/key_scores.h"
#include "ops/select_blocks.h"

namespace lb {
namespace {

CpuStreamOptions stream_options(const StreamNeeds& needs) {
  const int rows = std::max(needs.rows, kMaxTree);
  CpuStreamOptions stream{.n_threads = needs.n_threads, .isa = needs.isa};
  size_t &shared = stream.shared_scratch_bytes, &thread = stream.thread_scratch_bytes;
  for (const Network* network : needs.networks) {
    const auto& [n_heads, n_kv_heads, head_dim, key_tail] = network->attention();
    const auto& [used, dim, ffn, n_experts] = network->expert_products();
    shared =
        std::max({shared, linear_shared_scratch(rows, network->max_n_in()), expert_shared_scratch(rows, used, dim, ffn),
                  attention_shared_scratch(rows, n_heads, head_dim, needs.context)});
    thread = std::max({thread, linear_thread_scratch(network->max_n_in()),
                       attention_thread_scratch(head_dim + key_tail, n_heads, n_kv_heads),
                       key_scores_thread_scratch(needs.score_rows, n_heads, n_kv_heads, head_dim),
                       needs.is_sparse ? select_blocks_thread_scratch(sparse_blocks(needs.context)) : 0});
    for (const LayerShape& shape : network->layer_shapes())
      if (const auto* r = std::get_if<RecurrentShape>(&shape))
        thread = std::max(thread, delta_thread_scratch(r->dk, r->dv));
  }
  return stream;
}

// Free memory, minus memory that arenas have reserved but the system has not committed yet, minus memory that plans
// have promised.
size_t free_host_memory() {
  const size_t arenas = Arena::reserved_bytes(), taken = arenas - std::min(arenas, private_memory());
  const size_t free = available_memory(), held = taken + Device::promised_bytes("cpu");
  return free - std::min(free, held);
}

class CpuSizes final : public DeviceSizes {
 public:
  explicit CpuSizes(size_t free_bytes) : free_bytes_(free_bytes) {}
  std::string name() const override { return "cpu"; }
  std::string vendor() const override { return "cpu"; }
  size_t free_bytes() const override { return free_bytes_ > 0 ? free_bytes_ : free_host_memory(); }
  size_t reserved_bytes() const override { return 0; }
  std::string memory_name() const override { return "memory"; }
  int prefill_chunk() const override { return 512; }
  void check(const SparseWish& wish, const Model& model, const KvTypes&) const override { check_plain(wish, model); }
  void check_trees_by_row(const Model&) const override {}  // rows are invariant anyway
  void check_fp4(const Networks&) const override {
    fail(ErrorCode::kUnsupported,
         "activations = fp4 needs a GPU of sm_120 or sm_121; the model is opened on the CPU. Use activations = int8");
  }
  bool has_expert_slots() const override { return false; }
  bool maps_weights() const override { return true; }
  bool rows_are_invariant() const override { return true; }
  size_t weight_bytes(Network& network, const NetworkPart&) const override {
    return network.vector_bytes() + network.copied_bytes();
  }
  ScratchBytes scratch_of(const StreamNeeds& needs) const override {
    return [own = needs](int rows, int context) mutable {
      own.rows = rows;
      own.context = context;
      return CpuStream::planned_bytes(stream_options(own));
    };
  }
  std::string scratch_detail(const StreamNeeds& needs) const override {
    return cat(needs.n_threads, " threads, ", lb::name(needs.isa));
  }
  size_t loop_bytes(const Model&, const EngineOptions&) const override { return 0; }
  size_t step_bytes(const Models&, const EngineOptions&) const override { return 0; }

 private:
  size_t free_bytes_;
};

class CpuBackend final : public Backend {
 public:
  const DeviceSizes& sizes() const override { return sizes_; }
  Device& device() const override { return Device::find("cpu"); }
  LentMemory* lent() const override { return nullptr; }
  std::unique_ptr<Stream> make_stream(const StreamNeeds& needs) const override {
    return std::make_unique<CpuStream>(stream_options(needs));
  }
  std::unique_ptr<TokenLoop> make_loop(const Engine&, SequenceState&, std::span<const StepRing>) const override {
    return nullptr;
  }
  WeightStore load(Network& network, const NetworkPart&, int, Stream&, const KeptWeights::Store*,
                   const LoadProgress&) const override {
    WeightStore store{nullptr, network.addresses(), nullptr};
    store.table = store.addresses.data();
    return store;
  }
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
