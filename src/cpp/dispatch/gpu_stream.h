// A GPU as a place to run ops: each op's launches, chosen by launch/*.h, sent to one stream of the device. Scratch and
// the staging memory of copies are made with it, so that an op allocates nothing. Products of few rows wait for the op
// that reads them (gpu::DeferredGemm), and whatever else is asked of the stream starts them first.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "device/memory.h"
#include "dispatch/kernel_timer.h"
#include "gpu/attention/choose.h"
#include "gpu/delta_net/choose.h"
#include "gpu/elementwise/choose.h"
#include "gpu/gemm/choose.h"
#include "gpu/gemv/choose.h"
#include "gpu/sampling/choose.h"
#include "ops/stream.h"
#include "pack/pack.h"

namespace lb {

class GpuStream final : public Stream {
 public:
  static constexpr size_t kStagingBytes = size_t(8) << 20;  // pinned, of the host

  // capacity: tokens of the longest cache an op will see.
  GpuStream(std::shared_ptr<gpu::Pack> pack, size_t scratch_bytes, int capacity);

  gpu::Pack& pack() { return *pack_; }
  const gpu::Queue& queue() {
    flush();
    return queue_;
  }

  std::unique_ptr<Memory> reserve(size_t bytes) override;
  void upload(void* to, const void* from, size_t bytes) override;
  void download(void* to, const void* from, size_t bytes) override;
  void zero(void* to, size_t bytes) override;
  void wait() override { queue().synchronize(); }
  void replay(std::unique_ptr<Recording>& recording, const std::function<void()>& work) override;

  // Runs `work` and tells what each of its kernels took by itself: nothing overlaps, and no capture may be open.
  std::vector<gpu::KernelTime> time_kernels(const std::function<void()>& work);

  bool reads(WeightLayout layout) const override { return layout == WeightLayout::kPlanes; }
  int max_chain_rows() const override { return 1 << 20; }

  void run(const Embed&) override;
  void run(const RopeTable&) override;
  void run(const Rope&) override;
  void run(const RmsNorm&) override;
  void run(const GatedRmsNorm&) override;
  void run(const SwiGlu&) override;
  void run(const LinearGroup&) override;
  void run(const KvAppend&) override;
  void run(const KvMove&) override;
  void run(const AttentionPrepare&) override;
  void run(const Attention&) override;
  void run(const CausalConv&) override;
  void run(const DeltaPrepare&) override;
  void run(const GatedDelta&) override;
  void run(const DeltaInputs&) override;
  void run_fused(const RmsNorm& op, const LinearGroup& readers) override { try_fuse(op, readers); }
  void run_fused(const GatedRmsNorm& op, const LinearGroup& readers) override { send_rounded(op, readers); }
  void run_fused(const SwiGlu& op, const LinearGroup& readers) override { try_fuse(op, readers); }
  void run_fused(const Attention& op, const LinearGroup& readers) override;
  void run_fused(const DeltaNet& op, const LinearGroup& readers) override;
  void run(const Sample&, void* scratch);  // sample_scratch_bytes, zero before its first use
  void run(const CountWindow&);
  void run(const NextToken&);

 private:
  template <class Op>
  void send(const Op& op) {
    start(gpu::choose(op, pack_->target()), op);
  }
  // Behind the products that wait for what reads them.
  template <class Params>
  void start(const gpu::Launch& launch, const Params& params) {
    flush();
    start_now(launch, params);
  }
  template <class Params>
  void start_now(gpu::Launch launch, const Params& params) {
    launch.keeps_l1 = keeps_l1_;
    if (timer_ != nullptr) timer_->begin(launch.kernel);
    pack_->run(launch, params, queue_);
    if (timer_ != nullptr) timer_->end();
  }
  template <class Op>
  void try_fuse(const Op& op, const LinearGroup& readers) {
    std::optional<gpu::SkinnyStep> step;
    if (!chain_.is_empty()) step = chain_.try_fuse(op, readers, next_x_buffer(readers), pack_->target());
    step ? start_skinny(*step) : send_rounded(op, readers);
  }
  void start_skinny(const gpu::SkinnyStep& step);
  void flush();
  gpu::Buffer run_ahead();
  template <class Op>
  void send_rounded(Op op, const LinearGroup& readers);
  std::byte* stage(size_t bytes);
  bool is_gemm(const LinearGroup& group) const;
  int rounded_bits(const LinearGroup& group) const;                     // 0: its x stays as it is
  RoundedRows rounded_place(const LinearGroup& group, int bits) const;  // at the start of the scratch
  RoundedRows next_x_buffer(const LinearGroup& readers) const;          // at its start or its end, in turns
  void multiply(const LinearGroup& group, const RoundedRows& x);

  std::shared_ptr<gpu::Pack> pack_;
  gpu::Queue queue_;
  int capacity_;
  gpu::Buffer scratch_;  // of one op at a time
  gpu::Buffer arrived_;  // blocks of a product
  gpu::Buffer staging_;
  gpu::DeferredGemm chain_;
  bool chain_is_at_end_ = false;       // of the scratch, the x of what waits
  bool keeps_l1_ = false;              // of the last product: what lies between products divides memory as they do
  size_t staged_ = 0;                  // of the staging memory, since the stream was last waited for
  gpu::KernelTimer* timer_ = nullptr;  // of time_kernels, while it works
};

}  // namespace lb
