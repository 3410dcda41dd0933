// Stream: runs ops in the order they are sent, on the CPU (cpu/cpu_stream.h) or on a GPU (dispatch/gpu_stream.h). The
// pointers of an op point into the stream's memory. A GPU runs ops asynchronously: run() returns before the op is done.
//
// A stream class has bodies: functions run(const Op&), run(std::span<const Op>) and run_fused(const Op&, const
// LinearGroup&) for the ops (ops/ops.h) that it supports. op_bodies() collects them in a table at compile time.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>

#include "base/error.h"
#include "base/memory.h"
#include "ops/mixture.h"
#include "ops/ops.h"

namespace lb {

// Ops recorded for replay.
class Recording {
 public:
  virtual ~Recording() = default;
};

class Stream;

// A stream class's functions for one op. Null if it has no such body.
struct OpBodies {
  void (*run)(Stream&, const void* op);
  void (*run_batched)(Stream&, const void* ops, size_t n);
  void (*run_fused)(Stream&, const void* op, const LinearGroup& readers);
};
using OpTable = std::array<OpBodies, Ops::kSize>;

class Stream {
 public:
  virtual ~Stream() = default;

  virtual std::unique_ptr<Memory> reserve(size_t bytes) = 0;            // zeroed
  virtual void upload(void* to, const void* from, size_t bytes) = 0;    // from the host; `from` may be freed on return
  virtual void download(void* to, const void* from, size_t bytes) = 0;  // to the host; complete on return
  // The same, complete after wait(). Memory of reserve_on_host() is copied without a stage.
  virtual void upload_async(void* to, const void* from, size_t bytes) { upload(to, from, bytes); }
  virtual void download_async(void* to, const void* from, size_t bytes) { download(to, from, bytes); }
  virtual std::unique_ptr<Memory> reserve_on_host(size_t bytes) { return std::make_unique<Arena>(bytes); }
  virtual void copy(void* to, const void* from, size_t bytes) = 0;  // within its memory, without overlap
  virtual void zero(void* to, size_t bytes) = 0;
  virtual void wait() = 0;  // until all ops and copies sent are complete
  // Waits for the work sent before the previous pace(). Called at intervals, it bounds how far the host runs ahead of
  // the device.
  virtual void pace() {}

  // Sends the ops of `work`, which must not copy to or from the host. A device records them the first time and replays
  // the recording from then on: the same ops on the same pointers, reading what the memory holds at that time.
  virtual void replay(std::unique_ptr<Recording>&, const std::function<void()>& work) { work(); }

  // Whether ops of this stream can read weights of this layout. A stream that only records ops accepts any.
  virtual bool reads(WeightLayout) const { return true; }

  // Most rows of a chain that one CausalConv, DeltaPrepare or GatedDelta takes: a multiple of kMaxTree.
  virtual int max_chain_rows() const = 0;

  // Throws if the stream has no body for the op.
  template <ListedOp Op>
  void run(const Op& op) {
    const auto body = bodies_[Ops::index<Op>()].run;
    if (body == nullptr) refuse(Ops::index<Op>());
    body(*this, &op);
  }

  // Runs independent ops of one shape, such as one accepted path in several layers, or one row from each of several
  // sequences. A device may run several in one launch.
  template <ListedOp Op>
  void run(std::span<const Op> ops) {
    if (const auto body = bodies_[Ops::index<Op>()].run_batched) return body(*this, ops.data(), ops.size());
    for (const Op& op : ops) run(op);
  }

  // Runs an op and then the products that read its y. A device may fuse them, for instance quantise y in the op's
  // epilogue. Nothing else reads y, nor the inputs of a SwiGlu or of a DeltaNet's parts, so a device need not write
  // them.
  template <ListedOp Op>
  void run_fused(const Op& op, const LinearGroup& readers) {
    if (const auto body = bodies_[Ops::index<Op>()].run_fused) return body(*this, &op, readers);
    run(op);
    run(readers);
  }

  // Runs the ops of a layer in order. A device may fuse them.
  virtual void run_mixture(const MixtureLayer& layer) {
    run(layer.in);
    run(layer.routers);
    run(layer.route);
    if (layer.shared_inputs.n > 0) {
      run(layer.shared_inputs);
      run_fused(layer.shared_act, layer.shared_output);
    }
    run(layer.mix);
  }

 protected:
  // lack: the error text for an op without a body; follows the op's name.
  Stream(const OpTable& bodies, const char* lack) : bodies_(bodies.data()), lack_(lack) {}

 private:
  [[noreturn]] void refuse(size_t op) const {
    const auto names = Ops::map([](auto named) { return named.name(); });
    fail(ErrorCode::kUnsupported, "[", names[op], "] ", lack_);
  }

  const OpBodies* bodies_;
  const char* lack_;
};

// The bodies of S. A class that declares no run() or run_fused() inherits Stream's templates, which do not count.
template <class S>
constexpr OpTable op_bodies() {
  return Ops::map([]<class Op, OpName kName>(NamedOp<Op, kName>) {
    constexpr bool inherits_run = requires(S& stream, const Op& op) { stream.template run<Op>(op); };
    constexpr bool inherits_fused =
        requires(S& stream, const Op& op, const LinearGroup& readers) { stream.template run_fused<Op>(op, readers); };
    OpBodies bodies{};
    if constexpr (!inherits_run && requires(S& stream, const Op& op) { stream.run(op); })
      bodies.run = [](Stream& stream, const void* op) { static_cast<S&>(stream).run(*static_cast<const Op*>(op)); };
    if constexpr (!inherits_run && requires(S& stream, std::span<const Op> ops) { stream.run(ops); })
      bodies.run_batched = [](Stream& stream, const void* ops, size_t n) {
        static_cast<S&>(stream).run(std::span(static_cast<const Op*>(ops), n));
      };
    if constexpr (!inherits_fused &&
                  requires(S& stream, const Op& op, const LinearGroup& readers) { stream.run_fused(op, readers); })
      bodies.run_fused = [](Stream& stream, const void* op, const LinearGroup& readers) {
        static_cast<S&>(stream).run_fused(*static_cast<const Op*>(op), readers);
      };
    return bodies;
  });
}
template <class S>
inline constexpr OpTable kOpBodies = op_bodies<S>();

template <ListedOp Op>
void run(const Op& op, Stream& stream) {
  stream.run(op);
}
template <ListedOp Op>
void run_fused(const Op& op, const LinearGroup& readers, Stream& stream) {
  stream.run_fused(op, readers);
}

}  // namespace lb
