// The CPU stream: worker threads and their scratch, sized at construction so that ops allocate nothing. The run()
// functions are in cpu/run_*.cpp.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>
#include <vector>

#include "base/thread_pool.h"
#include "ops/stream.h"

namespace lb {

namespace cpu {
struct Kernels;
}

// The instruction sets of the CPU bodies. kScalar is the reference implementation.
enum class Isa { kScalar, kPortable, kAvx2, kAvx512 };
std::string_view name(Isa isa);
Isa best_isa();  // the fastest that this machine supports
bool is_available(Isa isa);

struct CpuStreamOptions {
  int n_threads = 1;
  Isa isa = Isa::kPortable;
  size_t shared_scratch_bytes = 0;  // for run(): quantised activations, partial results of split attention
  size_t thread_scratch_bytes = 0;  // for one task of one thread: an unpacked weight panel, a page of keys
};

class CpuStream final : public Stream {
 public:
  explicit CpuStream(const CpuStreamOptions& options);

  ThreadPool& pool() { return pool_; }
  const cpu::Kernels& kernels() const { return *kernels_; }
  Isa isa() const { return isa_; }

  // Returns 64-byte aligned memory that is valid until the next op. Asserts that `bytes` is within the plan.
  std::byte* shared_scratch(size_t bytes);
  std::byte* thread_scratch(int thread, size_t bytes);
  static size_t planned_bytes(const CpuStreamOptions& options);

  std::unique_ptr<Memory> reserve(size_t bytes) override;
  void upload(void* to, const void* from, size_t bytes) override;
  void download(void* to, const void* from, size_t bytes) override;
  void copy(void* to, const void* from, size_t bytes) override;
  void zero(void* to, size_t bytes) override;
  void wait() override {}
  bool reads(WeightLayout layout) const override { return layout == WeightLayout::kBlocks; }
  int max_chain_rows() const override { return kMaxTree; }

  void run(const Embed&);
  void run(const RopeTable&);
  void run(const Rope&);
  void run(const RmsNorm&);
  void run(const GatedRmsNorm&);
  void run(const AddNorm&);
  void run(const SwiGlu&);
  void run(const GeGlu&);
  void run(const SoftCap&);
  void run(const Linear& op) { run(LinearGroup{{op}, 1}); }
  void run(const LinearGroup&);
  void run(const RouteExperts&);
  void run(const MixExperts&);
  void run(const AddBias&);
  void run(const KvAppend&);
  void run(const KvMove&);
  void run(const AttentionPrepare&);
  void run(std::span<const AttentionPrepare> ops) { run_apart(ops); }
  void run(const Attention&);
  void run(std::span<const Attention> ops) { run_apart(ops); }
  void run(const KeyScores&);
  void run(const KeyMeans&);
  void run(const SelectBlocks&);
  void run(const CausalConv&);
  void run(const DeltaPrepare&);
  void run(const GatedDelta&);
  void run(const DeltaInputs& op) { run(op.conv), run(op.prepare); }
  void run(std::span<const DeltaInputs> ops) { run_apart(ops); }
  void run(std::span<const GatedDelta> ops) { run_apart(ops); }
  void run(const DeltaNet& op) { run(op.inputs), run(op.delta), run(op.norm); }
  void run(const CopyRows&);
  void run(const PreviousRow&);
  void run(const TopTokens&);
  void run(const BlockConv&);
  void run(const SelectCandidates&);
  void run(const GrowTree&);
  void run(const ReadPatches&);
  void run(const AddPositions&);
  void run(const AddAxisPositions&);
  void run(const PoolPatches&);
  void run(const Clamp&);
  void run(const LayerNorm&);
  void run(const BiasGelu&);
  void run(const SplitHeads&);
  void run(const MergeHeads&);

 private:
  // Runs small ops of several sequences: one op per task if there are at least as many ops as threads, else one after
  // another.
  template <class Op>
  void run_apart(std::span<const Op> ops) {
    const int n = static_cast<int>(ops.size());
    if (n >= pool().size()) return pool().parallel_for(n, [&](int task, int) { run(ops[task]); });
    for (const Op& op : ops) run(op);
  }
  struct Free {
    void operator()(std::byte* p) const;
  };
  using Block = std::unique_ptr<std::byte[], Free>;
  static Block allocate(size_t bytes);

  ThreadPool pool_;
  Isa isa_;
  const cpu::Kernels* kernels_;
  size_t shared_bytes_, thread_bytes_;
  Block shared_;
  std::vector<Block> per_thread_;
};

}  // namespace lb
