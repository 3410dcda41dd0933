// GpuStream: runs ops on a GPU. choose() (gpu/*/choose.h) turns an op into launches, which go to one queue. Scratch and
// pinned staging memory are allocated with the stream, so ops never allocate. A skinny GEMM, and a prompt's GEMM of
// gate and up, are deferred until the op that reads their result arrives. Any other call launches the deferred GEMM
// first.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <vector>

#include "device/graph.h"
#include "device/memory.h"
#include "dispatch/kernel_timer.h"
#include "dispatch/lent_memory.h"
#include "gpu/attention/choose.h"
#include "gpu/choose_batched.h"
#include "gpu/delta_net/choose.h"
#include "gpu/draft/choose.h"
#include "gpu/elementwise/choose.h"
#include "gpu/experts/choose.h"
#include "gpu/gemm/choose.h"
#include "gpu/gemm/choose_cast.h"
#include "gpu/gemv/choose.h"
#include "gpu/ranks/choose.h"
#include "gpu/sampling/choose.h"
#include "ops/stream.h"
#include "pack/pack.h"

namespace lb {

class DeviceLink;
class StreamGroup;

// A copy from a device's memory to another's.
struct LinkCopy {
  DeviceLink* link = nullptr;  // null: no copy
  void* to = nullptr;
  const void* from = nullptr;
  size_t bytes = 0;

  void send() const;
};

// Rows that a stream on another device computes and a norm of this stream reads.
struct Arrival {
  class GpuStream* sender;
  LinkCopy rows;
  const float* norm_w;  // the norm's weights, in the sender's memory
  LinkCopy after;       // follows the rows

  void send() const { rows.send(), after.send(); }
};

class GpuStream final : public Stream {
 public:
  static constexpr size_t kStagingBytes = size_t(8) << 20;  // pinned host memory

  // scratch_bytes: the largest op's. capacity: tokens of the longest KV cache. lent: source of all memory that the
  // stream reserves; null: the stream allocates. one_order: the products of 2 to kOneOrderRows rows sum in one order,
  // whatever the number of rows.
  GpuStream(std::shared_ptr<gpu::Pack> pack, size_t scratch_bytes, int capacity,
            std::shared_ptr<LentMemory> lent = nullptr, bool one_order = false,
            gpu::Queue::Runner runner = gpu::Queue::Runner::kCaller);
  static constexpr int kOneOrderRows = 32;
  // Bytes of device memory that the stream itself allocates.
  static size_t planned_bytes(size_t scratch_bytes);

  gpu::Pack& pack() { return *pack_; }
  // The queue, after launching any deferred GEMM.
  const gpu::Queue& queue() {
    flush();
    return queue_;
  }

  std::unique_ptr<Memory> reserve(size_t bytes) override;
  void upload(void* to, const void* from, size_t bytes) override;
  void download(void* to, const void* from, size_t bytes) override;
  void upload_async(void* to, const void* from, size_t bytes) override;
  void download_async(void* to, const void* from, size_t bytes) override;
  std::unique_ptr<Memory> reserve_on_host(size_t bytes) override;
  void copy(void* to, const void* from, size_t bytes) override;
  void zero(void* to, size_t bytes) override;
  void wait() override;
  void pace() override;
  void replay(std::unique_ptr<Recording>& recording, const std::function<void()>& work) override;
  // replay() in parts, for several streams that are recorded together (LinkedStreams). Records the ops sent until
  // finish() instead of running them.
  class Recorder {
   public:
    explicit Recorder(GpuStream& stream) : stream_(stream), capture_(stream.queue()) { stream.is_capturing_ = true; }
    ~Recorder() { stream_.is_capturing_ = false; }
    Recorder(const Recorder&) = delete;
    Recorder& operator=(const Recorder&) = delete;
    gpu::Resource finish();  // for a gpu::Graph

   private:
    GpuStream& stream_;
    gpu::Capture capture_;
  };
  // False while kernels are timed, and where the driver has no graphs.
  bool can_record() const { return timer_ == nullptr && pack_->device().info().has_graphs; }
  void run_mixture(const MixtureLayer& layer) override;

  // The streams of which this stream is one: wait(), download() and pace() check that none has failed. null: none.
  void join(StreamGroup* group) { group_ = group; }
  // Waits for an event of one of the group's streams.
  void await(const gpu::Event& event) const;
  // Whether all work sent so far has ended. Any thread may ask: this launches no deferred GEMM, and does not query a
  // queue that is being recorded, which would end the recording.
  bool is_done() const { return !is_capturing_ && queue_.is_done(); }
  // Calls of pace() that the stream has reached. Any thread may ask.
  unsigned n_paces_reached() const;
  bool has_failed_device() const;  // any thread may ask
  void check_devices() const;      // StreamGroup::check()
  // Waits until the queue is empty. Of a rank: throws as check_devices() does if a rank fails meanwhile.
  void synchronize();

  // Takes rows from another device. They are sent when the next op arrives: if it is their norm, and it would be the
  // epilogue of the sender's deferred GEMM on one device, the sender runs that epilogue, so that no bit changes.
  void receive(const Arrival& arrival) {
    flush();
    arrival_ = arrival;
  }

  // Runs `work` and returns each kernel's time. Its launches do not overlap. No capture may be open.
  std::vector<gpu::KernelTime> time_kernels(const std::function<void()>& work);
  // Appends every launch from now on to a list; null: to none.
  void record(std::vector<gpu::Launch>* launches) { launches_ = launches; }

  bool reads(WeightLayout layout) const override { return layout == WeightLayout::kPlanes; }
  int max_chain_rows() const override { return 1 << 20; }

  void run(const Embed& op) { send(op); }
  void run(const RopeTable&);
  void run(const Rope& op) { send(op); }
  void run(const RmsNorm& op) { send(op); }
  void run(const GatedRmsNorm& op) { send(op); }
  void run(const AddNorm& op) { send(op); }
  void run(const SwiGlu& op) { send(op); }
  void run(const GeGlu& op) { send(op); }
  void run(const SoftCap& op) { send(op); }
  void run(const RoundRows& op) { send(op); }
  void run(const Linear& op) { run(LinearGroup{{op}, 1}); }
  void run(const LinearGroup&);
  void run(const RouteExperts&);
  void run(const MixExperts&);
  void run(const gpu::StreamedLaunches& launches, StagedExperts& staged);
  void run(const AddBias& op) { send(op); }
  void run(const KvAppend& op) { send(op); }
  void run(const KvMove& op) { run(std::span(&op, 1)); }
  void run(std::span<const KvMove>);
  void run(const AttentionPrepare& op) { send(op); }
  void run(std::span<const AttentionPrepare>);
  void run(std::span<const Attention>);
  void run(std::span<const DeltaInputs>);
  void run(std::span<const GatedDelta>);
  void run(std::span<const CopyRows>);
  void run(const Attention&);
  void run(const KeyScores&);
  void run(const KeyMeans& op) { send(op); }
  void run(const SelectBlocks& op) { send(op); }
  void run(const CausalConv& op) { send(op); }
  void run(const DeltaPrepare& op) { send(op); }
  void run(const GatedDelta&);
  void run(const DeltaInputs&);
  void run(const CopyRows& op);
  void run(const AllReduce&);
  void run(const AllGather&);
  void run(const PreviousRow& op) { send(op); }
  void run(const TopTokens&);
  void run(const BlockConv& op) { send(op); }
  void run(const SelectCandidates&);
  void run(const GrowTree& op) { send(op); }
  void run(const ReadPatches& op) { send(op); }
  void run(const AddPositions& op) { send(op); }
  void run(const AddAxisPositions& op) { send(op); }
  void run(const PoolPatches& op) { send(op); }
  void run(const Clamp& op) { send(op); }
  void run(const LayerNorm& op) { send(op); }
  void run(const BiasGelu& op) { send(op); }
  void run(const SplitHeads& op) { send(op); }
  void run(const MergeHeads& op) { send(op); }
  void run_fused(const RmsNorm& op, const LinearGroup& readers) { try_fuse(op, readers); }
  void run_fused(const GatedRmsNorm& op, const LinearGroup& readers) { send_rounded(op, readers); }
  void run_fused(const SwiGlu& op, const LinearGroup& readers) { try_fuse(op, readers); }
  void run_fused(const GeGlu& op, const LinearGroup& readers) { send_rounded(op, readers); }
  void run_fused(const Attention& op, const LinearGroup& readers);
  void run_fused(const DeltaNet& op, const LinearGroup& readers);
  void run(const Sample&, void* scratch);  // [sample_scratch_bytes], zero before the first use
  // Samples for several sequences, each with separate scratch.
  struct ScratchedSample {
    Sample op;
    void* scratch;
  };
  void run(std::span<const ScratchedSample>);
  void run(std::span<const NextToken>);
  void run(const CountWindow& op) { send(op); }
  void run(const NextToken& op) { send(op); }
  void run(const WalkTree&, void* scratch);  // likewise

 private:
  template <class Op>
  void send(const Op& op) {
    start(gpu::choose(op, pack_->target()), op);
  }
  // Launches any deferred GEMM, then this.
  template <class Params>
  void start(const gpu::Launch& launch, const Params& params) {
    flush();
    start_now(launch, params);
  }
  template <class Params>
  void start_now(gpu::Launch launch, const Params& params) {
    launch.keeps_l1 = keeps_l1_;
    launch.overlap_previous = launch.overlap_previous && !table_is_new_;
    table_is_new_ = false;
    if (launches_ != nullptr) launches_->push_back(launch);
    if (timer_ != nullptr) timer_->begin(launch.kernel);
    pack_->run(launch, params, queue_);
    if (timer_ != nullptr) timer_->end();
  }
  // Runs ops of the same shape, with as many ops per launch as its params have room for. choose(op, i): the launches
  // and params of a launch's op i; between ops they differ only in pointers.
  template <class Op, class Choose>
  void run_batched(std::span<const Op> ops, Choose&& choose);
  template <class Op>
  void run_several_plain(std::span<const Op> ops);
  void run(const ScratchedSample& sample) { run(sample.op, sample.scratch); }
  template <class Op>
  void try_fuse(const Op& op, const LinearGroup& readers) {
    if constexpr (std::is_same_v<Op, RmsNorm>)
      if (arrival_ && fuse_arrival(op, readers)) return;
    if constexpr (std::is_same_v<Op, SwiGlu>)
      if (gate_ && fuse_gate(op, readers)) return;
    std::optional<gpu::SkinnyStep> step;
    if (!chain_.is_empty()) step = chain_.try_fuse(op, readers, next_x_buffer(readers), pack_->target());
    step ? start_skinny(*step) : send_rounded(op, readers);
  }
  void start_skinny(const gpu::SkinnyStep& step);
  void flush();
  bool fuse_arrival(const RmsNorm& op, const LinearGroup& readers);
  std::unique_ptr<Memory> allocate(size_t bytes);
  gpu::Buffer keep_busy();
  template <class Op>
  void send_rounded(Op op, const LinearGroup& readers);
  template <class Op>
  bool send_cast(const Op& op, const LinearGroup& readers);
  void send_gemms(gpu::GemmLaunches gemms);
  bool fuse_gate(const SwiGlu& op, const LinearGroup& readers);
  std::byte* stage(size_t bytes);
  bool has_one_order(const LinearGroup& group) const;
  bool is_gemm(const LinearGroup& group) const;
  void run_by_row(const Attention& op);
  void send_gemv(const LinearGroup& group, const RoundedRows& x);
  int rounded_bits(const LinearGroup& group) const;                // precision of the group's rounded x; 0: not rounded
  RoundedRows x_buffer(const LinearGroup& group, int bits) const;  // the x buffer at the start of the scratch
  RoundedRows next_x_buffer(const LinearGroup& readers) const;     // alternates between the start and the end of the
                                                                   // scratch
  void multiply(const LinearGroup& group, const RoundedRows& x);

  std::shared_ptr<gpu::Pack> pack_;
  gpu::Queue queue_;
  int capacity_;
  bool one_order_;
  std::shared_ptr<LentMemory> lent_;
  std::unique_ptr<Memory> scratch_;  // for the op in progress
  std::unique_ptr<Memory> arrived_;  // counters of a skinny GEMM's blocks
  gpu::Buffer staging_;
  gpu::DeferredGemm chain_;
  // Copies of the deferred GEMM's sums, sent right after it: whether a norm is its epilogue must not depend on them.
  std::array<CopyRows, 4> copies_;
  int n_copies_ = 0;
  std::optional<gpu::GemmLaunches> gate_;  // deferred GEMMs of gate and up, which one kernel can multiply and gate
  std::optional<Arrival> arrival_;         // not yet sent
  StreamGroup* group_ = nullptr;
  std::atomic<bool> is_capturing_ = false;  // a Recorder records
  unsigned n_slot_changes_ = 0;             // ops and replays that may have moved experts between slots
  bool chain_is_at_end_ = false;            // the x buffer of the deferred GEMM is at the end of the scratch
  bool keeps_l1_ = false;                   // L1 carve-out of the last product; ops between products keep it
  // The last launch wrote a rope table. Kernels read that table before they wait for the previous launch, so the next
  // launch must not overlap.
  bool table_is_new_ = false;
  gpu::Event paces_[2];                           // recorded by the last two calls of pace()
  std::atomic<unsigned> n_paces_ = 0;             // calls
  size_t staged_ = 0;                             // bytes of staging_ in use since the last synchronisation
  gpu::KernelTimer* timer_ = nullptr;             // set while time_kernels() runs; else null
  std::vector<gpu::Launch>* launches_ = nullptr;  // set by record(); else null
};

}  // namespace lb
