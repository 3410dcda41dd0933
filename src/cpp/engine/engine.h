// Engine: one model's weights on one target, immutable once open, with the plan of all memory it will use.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cpu/cpu_stream.h"
#include "engine/backend.h"
#include "format/model_file.h"
#include "models/model.h"
#include "ops/linear.h"
#include "state/sequence_state.h"

namespace lb {

// How a token is decoded on a GPU: one launch for each op, recorded in a graph, or one launch for all of them.
enum class DecodePath { kAuto, kGraph, kMegakernel };

struct EngineOptions {
  int context = 0;    // tokens a session holds; 0: the model's maximum, or what fits
  int n_threads = 0;  // 0: one per usable core
  Isa isa = Isa::kPortable;
  Activations activations = Activations::kInt8;
  DType kv = DType::kF16;
  int prefill_chunk = 0;                // rows of a prompt computed at once; 0: as many as suit the place
  DecodePath path = DecodePath::kAuto;  // auto: what is faster on the target; the CPU has neither
};

struct PlanEntry {
  std::string name;
  size_t bytes;
  std::string detail;
  bool per_session = false;  // every session reserves so much; the others are reserved once for the engine
};

struct MemoryPlan {
  std::string place;               // whose memory: "cpu", "cuda:0"
  std::vector<PlanEntry> entries;  // private memory, reserved at load
  size_t mapped_bytes = 0;         // weights the CPU reads from the file, shared with the page cache
  size_t available_bytes = 0;      // when the plan was made
  int context = 0, max_context = 0;
  size_t total_bytes() const;
};

// The buffers of a forward pass. Sessions of one engine take turns on it.
struct Executor {
  static constexpr int kLogitRows = 32;
  Executor(const Model& model, const EngineOptions& options, std::unique_ptr<Stream> stream);
  static size_t planned_bytes(const Model& model, int max_rows);

  std::mutex mutex;
  std::unique_ptr<Stream> stream;
  int max_rows;
  std::unique_ptr<Memory> memory;
  Workspace workspace;
  // Where the stream's ops read and write them.
  int32_t* tokens;      // [max_rows]
  int32_t* positions;   // [3, rows]
  int32_t* parents;     // [kMaxTree]
  uint64_t* ancestors;  // [kMaxTree]
  float* logits;        // [kLogitRows, vocab]
 private:
  static void carve_io(Executor* self, Carver& carver, const Model& model, int max_rows);
};

class Engine {
 public:
  // Opens, checks, plans and reserves. Throws before reserving anything when the plan does not fit.
  static std::shared_ptr<Engine> open(const std::string& path, EngineOptions options,
                                      std::unique_ptr<Backend> place = nullptr,  // null: the CPU
                                      const LoadProgress& progress = {});

  const Model& model() const { return *model_; }
  const ModelFile& file() const { return file_; }
  const EngineOptions& options() const { return options_; }  // with every default resolved
  const MemoryPlan& plan() const { return plan_; }
  StateOptions state_options() const { return {options_.context, options_.kv, options_.kv}; }
  // Identifies weights and settings that a saved session depends on.
  const std::string& fingerprint() const { return fingerprint_; }
  Executor& executor() const { return *executor_; }
  const Backend& backend() const { return *backend_; }

 private:
  Engine(ModelFile file, std::unique_ptr<Model> model, std::unique_ptr<Backend> place, EngineOptions options,
         MemoryPlan plan, const LoadProgress& progress);

  ModelFile file_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Backend> backend_;
  EngineOptions options_;
  MemoryPlan plan_;
  std::string fingerprint_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<Memory> weights_;  // null where they stay in the file
};

}  // namespace lb
