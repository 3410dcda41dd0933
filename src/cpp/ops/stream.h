// Stream: runs ops in the order they are sent, on the CPU (cpu/cpu_stream.h) or on a GPU (dispatch/gpu_stream.h). The
// pointers of an op lie in the stream's memory. A GPU runs ops asynchronously: run() returns before the op is complete.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>

#include "base/memory.h"
#include "ops/attention.h"
#include "ops/block_conv.h"
#include "ops/copy_rows.h"
#include "ops/delta_net.h"
#include "ops/embed.h"
#include "ops/grow_tree.h"
#include "ops/key_scores.h"
#include "ops/linear.h"
#include "ops/previous_row.h"
#include "ops/rms_norm.h"
#include "ops/rope.h"
#include "ops/select_blocks.h"
#include "ops/select_candidates.h"
#include "ops/top_tokens.h"

namespace lb {

// Ops recorded for replay.
class Recording {
 public:
  virtual ~Recording() = default;
};

class Stream {
 public:
  virtual ~Stream() = default;

  virtual std::unique_ptr<Memory> reserve(size_t bytes) = 0;            // zeroed
  virtual void upload(void* to, const void* from, size_t bytes) = 0;    // from the host; `from` may be freed on return
  virtual void download(void* to, const void* from, size_t bytes) = 0;  // to the host; complete on return
  virtual void copy(void* to, const void* from, size_t bytes) = 0;      // within its memory, without overlap
  virtual void zero(void* to, size_t bytes) = 0;
  virtual void wait() = 0;  // until all ops and copies sent are complete
  // Waits for what was sent before the previous call: called now and then, it keeps the host a little ahead of the
  // device, and no more.
  virtual void pace() {}

  // Sends the ops of `work`, which must not copy to or from the host. A device records them the first time and replays
  // the recording from then on: the same ops on the same pointers, reading what the memory holds at that time.
  virtual void replay(std::unique_ptr<Recording>&, const std::function<void()>& work) { work(); }

  // Whether ops of this stream can read weights of this layout. A stream that only records ops accepts any.
  virtual bool reads(WeightLayout) const { return true; }

  // Most rows of a chain that one CausalConv, DeltaPrepare or GatedDelta takes: a multiple of kMaxTree.
  virtual int max_chain_rows() const = 0;

  virtual void run(const Embed&) = 0;
  virtual void run(const RopeTable&) = 0;
  virtual void run(const Rope&) = 0;
  virtual void run(const RmsNorm&) = 0;
  virtual void run(const GatedRmsNorm&) = 0;
  virtual void run(const SwiGlu&) = 0;
  virtual void run(const LinearGroup&) = 0;
  virtual void run(const KvAppend&) = 0;
  virtual void run(const KvMove&) = 0;
  // The same path in several layers. A device may move some of them in one launch.
  virtual void run(std::span<const KvMove> moves) {
    for (const KvMove& move : moves) run(move);
  }
  virtual void run(const AttentionPrepare&) = 0;
  // Ops of the same shape, of one row of different sequences each. A device may run several in one launch.
  virtual void run(std::span<const AttentionPrepare> ops) { run_each(ops); }
  virtual void run(std::span<const Attention> ops) { run_each(ops); }
  virtual void run(std::span<const DeltaInputs> ops) { run_each(ops); }
  virtual void run(std::span<const GatedDelta> ops) { run_each(ops); }
  virtual void run(std::span<const CopyRows> ops) { run_each(ops); }
  virtual void run(const Attention&) = 0;
  virtual void run(const KeyScores&) = 0;
  virtual void run(const KeyMeans&) = 0;
  virtual void run(const SelectBlocks&) = 0;
  virtual void run(const CausalConv&) = 0;
  virtual void run(const DeltaPrepare&) = 0;
  virtual void run(const GatedDelta&) = 0;
  virtual void run(const CopyRows&) = 0;
  virtual void run(const PreviousRow&) = 0;
  virtual void run(const TopTokens&) = 0;
  virtual void run(const BlockConv&) = 0;
  virtual void run(const SelectCandidates&) = 0;
  virtual void run(const GrowTree&) = 0;
  virtual void run(const DeltaInputs& op) { run(op.conv), run(op.prepare); }

  // Runs an op and then the products that read its y. A device may fuse them, for instance round y where it is
  // computed. Nothing else reads y, nor the inputs of a SwiGlu or of a DeltaNet's parts, so a device need not write any
  // of these.
  virtual void run_fused(const RmsNorm& op, const LinearGroup& readers) { run(op), run(readers); }
  virtual void run_fused(const GatedRmsNorm& op, const LinearGroup& readers) { run(op), run(readers); }
  virtual void run_fused(const SwiGlu& op, const LinearGroup& readers) { run(op), run(readers); }
  virtual void run_fused(const Attention& op, const LinearGroup& readers) { run(op), run(readers); }
  virtual void run_fused(const DeltaNet& op, const LinearGroup& readers) {
    run(op.inputs), run(op.delta), run_fused(op.norm, readers);
  }

 private:
  template <class Op>
  void run_each(std::span<const Op> ops) {
    for (const Op& op : ops) run(op);
  }
};

template <class Op>
void run(const Op& op, Stream& stream) {
  stream.run(op);
}
inline void run(const Linear& op, Stream& stream) { stream.run(LinearGroup{{op}, 1}); }
template <class Op>
void run_fused(const Op& op, const LinearGroup& readers, Stream& stream) {
  stream.run_fused(op, readers);
}

}  // namespace lb
