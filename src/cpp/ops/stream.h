// Where ops run, and in whose memory their pointers lie: the CPU (cpu/cpu_stream.h) or a GPU (dispatch/gpu_stream.h).
// Ops of one stream run in the order they are sent; on a GPU they have only begun when run() returns.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "base/memory.h"
#include "ops/attention.h"
#include "ops/delta_net.h"
#include "ops/embed.h"
#include "ops/linear.h"
#include "ops/rms_norm.h"
#include "ops/rope.h"

namespace lb {

// Ops that a stream has written down.
class Recording {
 public:
  virtual ~Recording() = default;
};

class Stream {
 public:
  virtual ~Stream() = default;

  virtual std::unique_ptr<Memory> reserve(size_t bytes) = 0;
  virtual void upload(void* to, const void* from, size_t bytes) = 0;    // from the host; `from` may go on return
  virtual void download(void* to, const void* from, size_t bytes) = 0;  // to the host; there on return
  virtual void zero(void* to, size_t bytes) = 0;
  virtual void wait() = 0;  // until all of what was sent is done

  // Sends the ops of `work`, which copies nothing. A device writes them down the first time and afterwards sends what
  // it has written: the same ops, on what their memory holds by then.
  virtual void replay(std::unique_ptr<Recording>&, const std::function<void()>& work) { work(); }

  // Whether ops here read weights of this layout. A stream that only records reads no weights: any layout will do.
  virtual bool reads(WeightLayout) const { return true; }

  // Rows of a chain that CausalConv, DeltaPrepare and GatedDelta take at once: a multiple of kMaxTree.
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
  virtual void run(const AttentionPrepare&) = 0;
  virtual void run(const Attention&) = 0;
  virtual void run(const CausalConv&) = 0;
  virtual void run(const DeltaPrepare&) = 0;
  virtual void run(const GatedDelta&) = 0;
  virtual void run(const DeltaInputs& op) { run(op.conv), run(op.prepare); }

  // The op, then the products that read its y: a device that rounds their x may do so where y is made. Nobody else
  // reads y, nor what a SwiGlu or a DeltaNet's parts read, so that neither need be written.
  virtual void run_fused(const RmsNorm& op, const LinearGroup& readers) { run(op), run(readers); }
  virtual void run_fused(const GatedRmsNorm& op, const LinearGroup& readers) { run(op), run(readers); }
  virtual void run_fused(const SwiGlu& op, const LinearGroup& readers) { run(op), run(readers); }
  virtual void run_fused(const Attention& op, const LinearGroup& readers) { run(op), run(readers); }
  virtual void run_fused(const DeltaNet& op, const LinearGroup& readers) {
    run(op.inputs), run(op.delta), run_fused(op.norm, readers);
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
