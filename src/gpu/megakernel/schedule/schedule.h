// Schedule: a Stream that runs nothing. It records the ops of a one-row forward pass and compiles them to the tables
// that the megakernel interprets (gpu/megakernel/shape.h). Host code only: it keeps the ops' device pointers and never
// dereferences them.
//
// Fusion: a norm joins the products that read its result. An activation joins the products whose results it reads. The
// inputs of a recurrence or an attention are prepared inside it. The router's choice joins the products of experts. A
// copy into a ring joins the products that compute the row. An exchange between ranks joins the product that makes the
// exchanged values. Every other op becomes a node. A node gets the earliest
// phase that its reads and writes, as address ranges, allow. The tasks of a phase share the blocks in proportion to
// their bytes.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "gpu/megakernel/shape.h"
#include "ops/operands.h"
#include "ops/stream.h"
#include "pack/launch.h"
#include "pack/target.h"

namespace lb::gpu {

struct MegaPlan {
  Launch launch;
  std::vector<Task> tasks;
  std::vector<TaskStep> steps;         // [blocks, n_steps]
  std::vector<StreamCopy> streams;     // [blocks, n_streams, planes]; empty if weights are read by ordinary loads
  std::vector<int32_t> stream_counts;  // [blocks], or empty
  int n_steps, n_phases, n_streams;
  int n_mailboxes;
  int n_words;  // of MegaRanks; 0: the model is on one device
  MegaMemory memory;
  bool is_in_parts;   // weight chunks are copied in parts
  bool has_timeline;  // the kernel time-stamps its steps
  int n_blocks() const { return static_cast<int>(launch.grid[0]); }
};

std::string to_string(const Task& task);
// The launch, then the tasks of each phase, one per line.
std::string to_string(const MegaPlan& plan);

class Schedule final : public lb::Stream {
 public:
  explicit Schedule(const Target& target)
      : lb::Stream(kOpBodies<Schedule>, "has no task of the megakernel"), target_(target) {}

  // Adds the sampler and the step's end. A launch computes several tokens if the budget's pointers are not null. Throws
  // kUnsupported if the target has no kernel for the recorded ops.
  MegaPlan compile(const SampleOnGrid& sample, const NextToken& next, const TokenBudget& budget);

  // Reserves addresses without memory and ignores uploads to them, so that a step can be planned before memory exists.
  std::unique_ptr<Memory> reserve(size_t bytes) override;
  void upload(void*, const void*, size_t) override {}
  void download(void*, const void*, size_t) override { refuse("a copy"); }
  void copy(void*, const void*, size_t) override { refuse("a copy"); }
  void zero(void*, size_t) override {}
  void wait() override { refuse("waiting"); }
  int max_chain_rows() const override { return kMaxTree; }

  void run(const Embed& op);
  void run(const RopeTable& op);
  void run(const RmsNorm& op);
  void run(const Linear& op) { run(LinearGroup{{op}, 1}); }
  void run(const LinearGroup& group);
  void run(const AttentionPrepare& op);
  void run(const Attention& op);
  void run(const CopyRows& op);
  void run(const AllReduce& op);
  void run(const AllGather& op);
  void run(const DeltaInputs& op);
  void run(const GatedDelta& op);
  void run_fused(const RmsNorm& op, const LinearGroup& readers);
  void run_fused(const GatedRmsNorm& op, const LinearGroup& readers);
  void run_fused(const SwiGlu& op, const LinearGroup& readers);
  void run_fused(const DeltaNet& op, const LinearGroup& readers) {
    run(op.inputs), run(op.delta), run_fused(op.norm, readers);
  }
  void run_mixture(const MixtureLayer& layer) override;

 private:
  struct Range {
    const void* begin;
    size_t bytes;
  };
  struct Node {
    Task task;
    std::vector<Range> reads, writes;
    double bytes;  // bytes that the task moves, which decide its share of the blocks
    int min_parts, max_parts;
    int phase = 0;
    float* kept = nullptr;  // if a product's y is kept: its address in row 0 of the ring; else null
  };

  struct Kernel {
    const char* name;
    bool has_stream;
  };
  struct MailboxPlan;
  using StepLists = std::vector<std::vector<TaskStep>>;  // per block

  // record.cpp
  [[noreturn]] static void refuse(const char* what);
  // The memory of an op's operands that have this access.
  template <class Op>
  static std::vector<Range> ranges(const Op& op, Access access);
  static bool overlap(const std::vector<Range>& a, const std::vector<Range>& b);
  static bool conflict(const Node& before, const Node& after);
  void add(Node node);
  Node take_rows(const float* y, long n, int n_ranks);
  void products(const LinearGroup& group, const ProductTask& from, const std::vector<Range>& reads);
  // compile.cpp
  Kernel kernel() const;
  int last_phase() const;
  // ranks.cpp
  int sums_words() const;
  // mailboxes.cpp
  int writer_of(const void* at, int before) const;
  const void* made_at(const Node& node) const;
  int plan_mailboxes();  // returns the number of mailboxes
  // assign.cpp
  std::vector<bool> barriers() const;
  std::vector<int> share_blocks(const std::vector<int>& ids, int n_blocks) const;
  StepLists assign(int n_blocks) const;
  void add_sampler(const SampleOnGrid& sample, const NextToken& next, const TokenBudget& budget, MegaPlan& plan,
                   StepLists& lists);
  void finish_steps(MegaPlan& plan, StepLists& lists) const;
  // stream.cpp
  size_t pool_bytes() const;
  void plan_memory(MegaPlan& plan) const;
  void plan_ring(MegaPlan& plan) const;
  void plan_streams(MegaPlan& plan) const;

  const Target& target_;
  uintptr_t next_address_ = uintptr_t{1} << 60;        // next address of reserve(), in a range without memory
  const std::unique_ptr<Memory> splits_ = reserve(1);  // stands for the results of an attention's splits
  const std::unique_ptr<Memory> acts_ = reserve(1);    // stands for act() of the chosen experts
  std::vector<Node> nodes_;
  int n_ranks_ = 1;
  int n_sums_ = 0;                   // products whose rows are shares
  const int32_t* n_kept_ = nullptr;  // counter that selects the ring row of kept rows; null: no row is kept
  // Ops deferred until their reader: the next product, GatedDelta, Attention.
  std::optional<RmsNorm> norm_;
  std::optional<DeltaInputs> inputs_;
  std::optional<AttentionPrepare> prepare_;
};

}  // namespace lb::gpu
