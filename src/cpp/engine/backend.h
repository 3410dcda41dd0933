// What an engine runs on: it says what memory there is and what a model needs of it, and makes the stream of its ops.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "dispatch/kernel_timer.h"
#include "engine/token_loop.h"
#include "models/model.h"

namespace lb {

class Engine;
struct EngineOptions;

// Called while weights are brought to a device, with bytes done and bytes to do.
using LoadProgress = std::function<void(size_t done, size_t total)>;

class Backend {
 public:
  virtual ~Backend() = default;

  virtual std::string name() const = 0;                 // "cpu", "cuda:0"
  virtual size_t available_bytes() const = 0;           // now
  virtual std::string memory_name() const = 0;          // in messages: "memory", "memory of cuda:0"
  virtual int prefill_chunk() const = 0;                // where the caller names none
  virtual bool maps_weights() const = 0;                // matrices stay where the file is mapped
  virtual size_t weight_bytes(Model& model) const = 0;  // of what load() copies
  virtual size_t scratch_bytes(const Model& model, const EngineOptions& options) const = 0;
  virtual std::string scratch_detail(const EngineOptions& options) const = 0;

  virtual std::unique_ptr<Stream> make_stream(const Model& model, const EngineOptions& options) const = 0;
  // Decoding with the sampler on the device; null and 0 where tokens are chosen on the host.
  virtual std::unique_ptr<TokenLoop> make_loop(const Engine& engine, SequenceState& state) const = 0;
  virtual size_t loop_bytes(const Model& model, const EngineOptions& options) const = 0;
  // Of the loop, besides: whatever the context, which may not be settled.
  virtual size_t step_bytes(const Model& model, const EngineOptions& options) const = 0;
  // Runs `work`, which sends ops to a stream of this place, and tells what each kernel took. Refused where ops are not
  // launches.
  virtual std::vector<gpu::KernelTime> time_kernels(Stream& stream, const std::function<void()>& work) const = 0;
  // Brings the weights there; what it returns holds them.
  virtual std::unique_ptr<Memory> load(Model& model, const EngineOptions& options, Stream& stream,
                                       const LoadProgress& progress) const = 0;
};

}  // namespace lb
