// The GPU backend. Weights are planes in device memory; scratch is sized for the largest op.
#include "engine/backend_gpu.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "dispatch/gpu_stream.h"
#include "engine/engine.h"
#include "engine/gpu_load.h"
#include "engine/gpu_token_loop.h"
#include "gpu/experts/choose.h"
#include "gpu/gemm/choose_config.h"
#include "gpu/gemm_skinny/choose_config.h"
#include "gpu/linear_group.h"

namespace lb {
namespace {

// Free memory reserved for the driver's contexts, code and graphs.
constexpr size_t kReserveBytes = size_t(256) << 20;

// Scratch of a product group: quantised x and, for a GEMM, its workspace.
size_t group_scratch(LinearGroup& group, int rows, const gpu::Target& target) {
  for (int i = 0; i < group.n; ++i) group.products[i].rows = rows;
  const Linear& first = group.products[0];
  if (rows > 1 && gpu::has_gemm(group, target))
    return gpu::gemm_scratch_at(first, gpu::gemm_rounded_bits(group, target)) + gpu::gemm_scratch_bytes(group, target);
  return gpu::gemm_scratch_at(first, gpu::rounded_bits(group));
}

// Scratch of a product group whose sums have one order: quantised x, and the workspace of the part with skinny kernels.
size_t one_order_scratch(LinearGroup group, const gpu::Target& target) {
  size_t bytes = 0;
  for (int rows = 2; rows <= GpuStream::kOneOrderRows; ++rows) {
    for (int i = 0; i < group.n; ++i) group.products[i].rows = rows;
    const LinearGroup skinny = gpu::split_skinny(group, target).skinny;
    bytes = std::max(bytes, gpu::gemm_scratch_at(group.products[0], gpu::rounded_bits(group)) +
                                (skinny.n > 0 ? gpu::gemm_scratch_bytes(skinny, target) : 0));
  }
  return bytes;
}

// Scratch of a chain of skinny GEMMs, each fused with the op that computes the next GEMM's x (gpu::DeferredGemm): the
// largest partial sums, and two x buffers.
size_t chain_scratch(std::span<LinearGroup> groups, const gpu::Target& target) {
  size_t bytes = 0;
  for (int rows = 2; rows <= kMaxTree; ++rows) {
    size_t x = 0, partials = 0;
    for (LinearGroup& group : groups) {
      for (int i = 0; i < group.n; ++i) group.products[i].rows = rows;
      const gpu::SkinnyScratch scratch = gpu::skinny_scratch(group, target);
      x = std::max(x, scratch.x);
      partials = std::max(partials, scratch.partials);
    }
    if (partials > 0) bytes = std::max(bytes, 2 * x + partials);
  }
  return bytes;
}

size_t attention_scratch(const Network& network, int rows, int context, const gpu::Target& target) {
  const auto& [n_heads, n_kv_heads, head_dim, key_tail] = network.attention();
  const Linear o_product = {.rows = rows, .n_in = n_heads * head_dim};
  const size_t one = gpu::attention_scratch_bytes(rows, n_heads, head_dim, context, target);
  const size_t row = gpu::attention_row_scratch_bytes(n_heads, n_kv_heads, head_dim, context, target);
  return std::max(gpu::gemm_scratch_at(o_product, 16) + one, gpu::kMaxBatched * gpu::aligned_scratch(row));
}

size_t recurrent_scratch(const Network& network, int rows, const gpu::Target& target) {
  size_t bytes = 0;
  for (const LayerShape& shape : network.layer_shapes())
    if (const auto* r = std::get_if<RecurrentShape>(&shape))
      for (int append_rows : {rows, kMaxTree}) {
        const GatedDelta op = {
            .rows = append_rows, .n_k_heads = r->n_k_heads, .n_v_heads = r->n_v_heads, .dk = r->dk, .dv = r->dv};
        bytes = std::max(bytes, gpu::gated_delta_scratch_bytes(op, target));
      }
  return bytes;
}

// The product groups of all networks, deduplicated by shape: most layers have the same shapes.
std::vector<LinearGroup> product_groups(const Networks& networks, Activations activations) {
  std::set<std::vector<std::pair<DType, int>>> seen;
  std::vector<LinearGroup> groups;
  for (const Network* network : networks)
    network->for_each_group([&](Network::Group matrices) {
      LinearGroup group = {};
      std::vector<std::pair<DType, int>> key = {{DType::kF32, (*matrices.begin())->n_in}};
      for (const Matrix* m : matrices) {
        group.products[group.n++] = {.type = m->type, .n_in = m->n_in, .n_out = m->n_out, .activations = activations};
        key.emplace_back(m->type, m->n_out);
      }
      if (seen.insert(key).second) groups.push_back(group);
    });
  return groups;
}

// Ops run one after another and share one scratch, sized for the largest. A chain of products may span two networks: a
// draft model ends with the target's head. Only attention depends on the context, and all contexts beyond a chunk have
// the chunk's rows.
class GpuScratch {
 public:
  GpuScratch(const StreamNeeds& needs, const gpu::Target& target)
      : networks_(needs.networks),
        target_(target),
        groups_(product_groups(networks_, needs.activations)),
        of_few_rows_(chain_scratch(groups_, target)) {
    for (LinearGroup& group : groups_) {
      for (int rows = 1; rows < kMaxTree; ++rows)
        of_few_rows_ = std::max(of_few_rows_, group_scratch(group, rows, target));
      if (needs.one_order) of_few_rows_ = std::max(of_few_rows_, one_order_scratch(group, target));
    }
    if (networks_.size() > 1) of_few_rows_ = std::max(of_few_rows_, gpu::top_tokens_scratch_bytes(kMaxTree));
  }
  size_t bytes(int append_rows, int context) {
    const int rows = std::max(append_rows, kMaxTree);
    if (!by_rows_.contains(rows)) by_rows_[rows] = at_any_context(rows);
    size_t bytes = by_rows_[rows];
    for (const Network* network : networks_)
      bytes = std::max(bytes, attention_scratch(*network, rows, context, target_));
    return bytes;
  }

 private:
  size_t at_any_context(int rows) {
    size_t bytes = of_few_rows_;
    for (const Network* network : networks_) {
      const auto& [used, dim, ffn, n_experts] = network->expert_products();
      bytes = std::max(bytes, gpu::expert_scratch_bytes(rows, used, dim, ffn));
      bytes = std::max(bytes, recurrent_scratch(*network, rows, target_));
    }
    for (LinearGroup& group : groups_) {
      bytes = std::max(bytes, group_scratch(group, rows, target_));
      // Fewer rows may take more, because each number of rows has its own kernel and split.
      for (int fewer = kMaxTree; fewer < rows; fewer += kMaxTree)
        bytes = std::max(bytes, group_scratch(group, fewer, target_));
    }
    return bytes;
  }

  Networks networks_;
  const gpu::Target& target_;
  std::vector<LinearGroup> groups_;
  size_t of_few_rows_;             // of ops of fewer than kMaxTree rows, and of chains
  std::map<int, size_t> by_rows_;  // at any context
};

class GpuSizes final : public DeviceSizes {
 public:
  GpuSizes(gpu::Target target, std::string name, std::function<size_t()> free_bytes, MemorySource source)
      : target_(std::move(target)), name_(std::move(name)), free_bytes_(std::move(free_bytes)), source_(source) {}

  std::string name() const override { return name_; }
  std::string vendor() const override { return target_.vendor; }
  size_t free_bytes() const override { return free_bytes_(); }
  size_t reserved_bytes() const override { return source_ == MemorySource::kFree ? kReserveBytes : 0; }
  std::string memory_name() const override {
    return cat(source_ == MemorySource::kFree ? "memory of " : "the target's weights on ", name_);
  }
  int prefill_chunk() const override { return target_.tune("prefill_chunk"); }
  void check(const SparseWish& wish, const Model& model, const KvTypes& kv) const override {
    if (wish.alpha == 0) return;
    check_plain(wish, model);
    const std::string wanted = cat(wish.option, " = ", wish.alpha);
    LB_CHECK(gpu::has_sparse_attention(target_), kUnsupported, wanted, ": ", target_.name, " (", name_,
             ") has no kernels for block-sparse attention, which runs on the CPU and on NVIDIA GPUs. Use ", wish.option,
             " = 0");
    LB_CHECK(kv.k == KvType::kF16 && kv.v == KvType::kF16, kUnsupported, wanted, ": block-sparse attention on ", name_,
             " takes kv = f16, got ", to_string(kv));
    const auto& [n_heads, n_kv_heads, head_dim, key_tail] = model.attention();
    LB_CHECK(gpu::has_sparse_attention(n_heads, n_kv_heads, head_dim, target_), kUnsupported, wanted,
             ": block-sparse attention on ", target_.name, " (", name_, ") has no kernels for ", n_heads, " heads of ",
             head_dim, " over ", n_kv_heads, " KV heads. Use ", wish.option, " = 0");
  }
  void check_trees_by_row(const Model& model) const override {
    const std::string wanted = "batch_invariant with drafts";
    LB_CHECK(gpu::has_attention_by_row(target_), kUnsupported, wanted, ": ", target_.name, " (", name_,
             ") has no kernels for it, which NVIDIA GPUs from sm_80 have. Use draft = none");
    const auto& [n_heads, n_kv_heads, head_dim, key_tail] = model.attention();
    LB_CHECK(n_heads <= gpu::kDecodeQueries * n_kv_heads, kUnsupported, wanted, ": at most ", gpu::kDecodeQueries,
             " query heads may share a KV head; the model has ", n_heads, " over ", n_kv_heads, ". Use draft = none");
    for (const LinearGroup& group : product_groups({&model}, Activations::kInt8)) {
      gpu::TypeGroups types = gpu::split_types(group);
      for (LinearGroup& type : std::span(types.groups, size_t(types.n))) {
        for (int i = 0; i < type.n; ++i) type.products[i].rows = 2;
        // Without a kernel for 2 rows, rows are multiplied one by one.
        LB_CHECK(!gpu::has_skinny(type, target_) || gpu::has_one_order(type, gpu::Epilogue::kSums, target_),
                 kUnsupported, wanted, ": ", name_, " has too few multiprocessors, ", target_.n_sms,
                 ", for 32 rows of [", type.products[0].n_out, ", ", type.products[0].n_in, "]. Use draft = none");
      }
    }
  }
  void check_fp4(const Networks& networks) const override {
    gpu::check_fp4(target_);
    const auto has_nvfp4 = [](const LinearGroup& group) {
      return std::ranges::any_of(gpu::ops_of(group), [](const Linear& op) { return op.type == DType::kNVFP4; });
    };
    LB_CHECK(std::ranges::any_of(product_groups(networks, Activations::kFp4), has_nvfp4), kUnsupported,
             "activations = fp4 is for prompts of NVFP4 weights, and this model has none. Use activations = int8");
  }
  bool maps_weights() const override { return false; }
  bool rows_are_invariant() const override { return false; }
  size_t weight_bytes(Network& network, const NetworkPart& part) const override {
    network.for_each_matrix([](const Matrix& m) {
      if (m.n_experts > 0) gpu::check_expert_type(m.type, cat("tensor ", m.name));
    });
    Carver counter, experts;
    network.carve_planes(counter, experts, part, {}, nullptr);
    return counter.used() + experts.used() + expert_ring_bytes(network);
  }
  bool has_expert_slots() const override { return gpu::has_expert_slots(target_); }
  ScratchBytes scratch_of(const StreamNeeds& needs) const override {
    return [scratch = GpuScratch(needs, target_)](int rows, int context) mutable {
      return GpuStream::planned_bytes(scratch.bytes(rows, context));
    };
  }
  std::string scratch_detail(const StreamNeeds&) const override {
    return cat("rounded activations, partial attention; pack ", target_.name);
  }
  size_t loop_bytes(const Model& model, const EngineOptions& options) const override {
    return gpu_token_loop_bytes(model, options, options.context);
  }
  size_t step_bytes(const Models& models, const EngineOptions& options) const override {
    return gpu_step_bytes(models, options, target_);
  }

 private:
  gpu::Target target_;
  std::string name_;
  std::function<size_t()> free_bytes_;
  MemorySource source_;
};

class GpuBackend final : public Backend {
 public:
  GpuBackend(std::shared_ptr<gpu::Pack> pack, std::string name, std::shared_ptr<const Engine> lender)
      : pack_(std::move(pack)),
        device_(Device::find(name)),
        lender_(std::move(lender)),
        lent_(lender_ ? std::make_shared<LentMemory>(pack_->device(), lender_->shard().weights()) : nullptr),
        sizes_(pack_->target(), std::move(name), free_memory(), lent_ ? MemorySource::kLent : MemorySource::kFree) {}

  const DeviceSizes& sizes() const override { return sizes_; }
  Device& device() const override { return device_; }
  LentMemory* lent() const override { return lent_.get(); }
  std::unique_ptr<Stream> make_stream(const StreamNeeds& needs) const override {
    using Runner = gpu::Queue::Runner;
    const size_t scratch = GpuScratch(needs, pack_->target()).bytes(needs.rows, needs.context);
    return std::make_unique<GpuStream>(pack_, scratch, needs.context, lent_, needs.one_order,
                                       needs.awaits_queues ? Runner::kOwnThread : Runner::kCaller);
  }
  std::unique_ptr<TokenLoop> make_loop(const Engine& engine, SequenceState& state,
                                       std::span<const StepRing> rings) const override {
    return gpu_token_loop(engine, state, rings);
  }

  std::vector<gpu::KernelTime> time_kernels(Stream& stream, const std::function<void()>& work) const override {
    return static_cast<GpuStream&>(stream).time_kernels(work);
  }

  WeightStore load(Network& network, const NetworkPart& part, int n_threads, Stream& stream,
                   const KeptWeights::Store* kept, const LoadProgress& progress) const override {
    WeightStore weights =
        load_weights(network, part, static_cast<GpuStream&>(stream), {.n_threads = n_threads}, kept, progress);
    if (lent_) lent_->keep(*weights.memory);
    return weights;
  }

 private:
  std::function<size_t()> free_memory() const {
    if (lent_) return [bytes = lent_->size()] { return bytes; };
    return [pack = pack_, &device = device_] {
      const size_t free = pack->device().memory().free_bytes;
      return free - std::min(free, device.promised_bytes());
    };
  }

  std::shared_ptr<gpu::Pack> pack_;
  Device& device_;
  std::shared_ptr<const Engine> lender_;  // lent_ is its weight memory
  std::shared_ptr<LentMemory> lent_;      // null: uses free memory
  GpuSizes sizes_;
};

}  // namespace

std::unique_ptr<DeviceSizes> gpu_sizes(gpu::Target target, std::string name, size_t free_bytes, MemorySource source) {
  return std::make_unique<GpuSizes>(std::move(target), std::move(name), [free_bytes] { return free_bytes; }, source);
}

std::unique_ptr<Backend> gpu_backend(std::shared_ptr<gpu::Pack> pack, std::string name,
                                     std::shared_ptr<const Engine> lender) {
  if (lender != nullptr) {
    LB_CHECK(
        lender->shards().size() == 1, kUnsupported,
        "a model on several devices lends no memory to a scorer of prompts: use one device, or no prefill_drafter");
    const std::string other = lender->backend().sizes().name();
    LB_CHECK(other == name && !lender->shard().weights().empty(), kInvalid, "a scorer on ", name,
             " can borrow memory only of an engine on the same device; the lender is on ", other);
  }
  return std::make_unique<GpuBackend>(std::move(pack), std::move(name), std::move(lender));
}

}  // namespace lb
