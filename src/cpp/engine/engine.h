// Engine: one model's weights on one device, immutable once open, with the plan of all memory it will use.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cpu/cpu_stream.h"
#include "engine/backend.h"
#include "engine/recorded_appends.h"
#include "format/model_file.h"
#include "models/model.h"
#include "ops/linear.h"
#include "quant/kv_names.h"
#include "speculation/step_costs.h"
#include "speculation/suffix.h"
#include "state/sequence_state.h"

namespace lb {

// How a GPU decodes a token: a recorded graph with a launch per op, or one launch of the megakernel.
enum class DecodePath { kAuto, kGraph, kMegakernel };

struct EngineOptions {
  int context = 0;  // capacity of a session in tokens; 0: the model's maximum, or the most that fits
  // Tokens of the KV cache, which all sessions share; 0: `sessions` contexts, or the most that fits, at least one.
  int kv_tokens = 0;
  int sessions = 1;   // that the plan makes room for; more may share the KV cache
  int n_threads = 0;  // 0: one per usable core
  Isa isa = Isa::kPortable;
  Activations activations = Activations::kInt8;
  KvTypes kv;
  int prefill_chunk = 0;                // rows of a prompt computed at once; 0: the backend's default
  DecodePath path = DecodePath::kAuto;  // kAuto: the faster one on the target; the CPU supports kAuto only
  // Drafter: "none", "suffix", "mtp" (the block in the model's file) or a drafter's file; a draft model and the suffix
  // drafter together are "mtp+suffix" or "FILE+suffix".
  std::string draft = "none";
  static constexpr std::string_view kWithSuffix = "+suffix";
  int draft_budget = 0;  // tokens of a draft; 0: chosen for each step
  // > 0: the engine scores prompts by so many last rows (PromptScorer), and has no sessions.
  int score_rows = 0;
  // Alpha of SelectBlocks, for block-sparse attention of prompts; 0: dense attention. The first one is a target's, the
  // second one a scorer's.
  float sparse_prefill = 0, prefill_sparse_alpha = 0;
  bool batch_invariant = false;  // tokens of one session are computed as those of several; without drafts
  size_t memory_limit = 0;       // most bytes of the device's free memory that a plan may use; 0: all

  bool drafts() const { return draft != "none"; }
  bool drafts_suffixes() const { return draft == "suffix" || draft.ends_with(kWithSuffix); }
  std::string draft_model() const;  // "mtp" or a file; empty: no draft model
  float sparse_alpha() const { return score_rows > 0 ? prefill_sparse_alpha : sparse_prefill; }
  std::string_view sparse_option() const { return score_rows > 0 ? "prefill_sparse_alpha" : "sparse_prefill"; }
  int tree_rows() const { return drafts() ? (draft_budget == 0 ? kMaxTree : draft_budget + 1) : 0; }
};

struct PlanEntry {
  std::string name;
  size_t bytes;
  std::string detail;
  bool per_session = false;  // reserved by every session; other entries are reserved once per engine
};

// A type of keys and values that the heads can have.
struct KvFit {
  KvTypes kv;
  size_t token_bytes;   // of the layers that keep all rows, a draft model's included
  int largest_context;  // tokens that fit; 0: none
};

struct MemoryPlan {
  std::string device;                // "cpu", "cuda:0"
  std::vector<PlanEntry> entries;    // private memory
  size_t mapped_bytes = 0;           // weights read from the file's mapping, shared with the page cache
  size_t available_bytes = 0;        // free memory of the device when the plan was made
  int context = 0, max_context = 0;  // tokens: of this engine, of the model
  int kv_tokens = 0;                 // of the KV cache
  int largest_context = 0;           // tokens: the longest context that fits; 0: none
  std::vector<KvFit> kv_fits;        // the same type for K and V, largest first
  size_t total_bytes() const;        // sum of the entries, with one session
};

// The inputs of a pass of several sequences, which one upload sends.
struct PassInputs {
  static constexpr int kRows = 32;  // most rows; on a device their sums have one order among 2 to so many rows
  uint64_t ancestors[kRows];
  int32_t tokens[kRows], parents[kRows];
  int32_t positions[3 * kRows];  // [3, rows]
  AppendNumbers numbers[kRows];  // of each segment that is a chain
};

// The stream and the buffers of a forward pass. An engine has two: that of its steps, and that of the long chunks of
// prompts, between whose layers other sessions may step. Sessions of one engine take turns: they lock `mutex`, which a
// thread may lock again.
struct Executor {
  static constexpr int kLogitRows = 32;  // rows of logits computed at once
  // Rows of the longest append that has the buffers of the steps. A chunk of a prompt is longer by default.
  static constexpr int kStepRows = 256;
  static int step_rows(const EngineOptions& options);

  Executor(const Models& models, const EngineOptions& options, int max_rows, Stream& stream,
           std::recursive_mutex& mutex);
  static size_t planned_bytes(const Models& models, const EngineOptions& options, int max_rows);

  std::recursive_mutex& mutex;
  Stream* stream;
  int max_rows;
  bool is_held = false;  // by a chunk, between whose layers other sessions compute
  std::unique_ptr<Memory> memory;
  Workspace workspace;
  // In the stream's memory: inputs and outputs of the ops.
  int32_t* tokens;         // [max_rows]
  int32_t* positions;      // [3, rows] of an append, at most max_rows
  int32_t* parents;        // [kMaxTree]; as the next two, of the steps alone
  uint64_t* ancestors;     // [kMaxTree]
  float* logits;           // [kLogitRows, vocab]
  DraftWorkspace draft{};  // of the draft model; null without one
  PassInputs* pass;        // [1]
  RecordedAppends recorded_passes;
  int32_t* draft_n_past = nullptr;     // [1] tokens before rows of plain steps (StepRows); null without a draft model
  std::optional<SparseBlocks> sparse;  // of prompts; none: dense attention

 private:
  static void carve_io(Executor* self, Carver& carver, const Models& models, const EngineOptions& options,
                       int max_rows);
};

// Polled between layers and between chunks. Returning true stops the work with kCancelled; the caller's object stays
// usable.
using Interrupted = std::function<bool()>;
// Called between the layers of a prompt's chunk.
using BetweenLayers = std::function<void()>;
// Called as a prompt is computed, with tokens done and tokens to do.
using Progress = std::function<void(int done, int total)>;

class Engine {
 public:
  static constexpr int kEarlierTokens = 1 << 16;   // of other sequences' outputs
  static constexpr int kExpectedTokens = 1 << 14;  // of a text that a request expects

  // Opens and checks the file, makes the plan, reserves memory and loads the weights. When the plan does not fit,
  // throws before reserving anything.
  static std::shared_ptr<Engine> open(const std::string& path, EngineOptions options,
                                      std::unique_ptr<Backend> backend = nullptr,  // null: the CPU
                                      const LoadProgress& progress = {});
  // The plan that open() would make for a device with these sizes. Reads the files' metadata and small weights, and
  // reserves nothing. Resolves the defaults among the options.
  static MemoryPlan plan(const std::string& path, EngineOptions& options, const DeviceSizes& sizes);

  const Model& model() const { return *models_.target; }
  const DraftModel* draft_model() const { return models_.draft.get(); }  // null: none
  std::vector<LayerShape> layer_shapes() const { return models_.layer_shapes(); }
  const ModelFile& file() const { return file_; }
  const EngineOptions& options() const { return options_; }  // with every default resolved
  const MemoryPlan& plan() const { return plan_; }
  StateOptions state_options() const;
  // The KV cache, which all sessions share; null where the engine scores prompts.
  const std::shared_ptr<PagePool>& pages() const { return pages_; }
  // Throws unless all ids are in the vocabulary and fit the context.
  void check_ids(std::span<const int32_t> ids) const;
  // Outputs of all sessions, for the suffix drafter; null without it.
  const std::shared_ptr<EarlierOutputs>& outputs() const { return outputs_; }
  // Costs of a step on this device. Empty until the first session measures them or set_step_costs() sets them.
  std::optional<StepCosts> step_costs() const;
  void set_step_costs(const StepCosts& costs) const;
  // DraftPlanner::model_may_pay() at these costs. True without a draft model, without costs and with a fixed budget.
  bool draft_may_pay() const;
  // Identifies the files' metadata, all weights and the settings that a saved session depends on. The first call reads
  // all bytes of the files.
  const std::string& fingerprint() const;
  // Identifies the files' metadata, and names, types and shapes of their tensors, which the time of a step depends on.
  std::string layout() const;
  Executor& executor() const { return *steps_; }
  // The one of the long chunks of prompts; executor() where no append is longer than a step's.
  Executor& prompts_executor() const { return prompts_ ? *prompts_ : *steps_; }
  // The one whose buffers an append of so many rows takes. Only that of prompts has buffers of sparse attention.
  Executor& executor_for(int rows, bool is_sparse = false) const {
    return is_sparse || rows > steps_->max_rows ? prompts_executor() : *steps_;
  }
  // Bytes of the buffers of both.
  static size_t executor_bytes(const Models& models, const EngineOptions& options);
  // The target's forward pass over an append and, behind it, the draft model's rows of the append. Its inputs lie in
  // the executor's memory or a session's.
  void forward(const Executor& executor, Append append, const Taps* taps = nullptr) const;
  const Backend& backend() const { return *backend_; }
  // The target's weights in device memory; empty where they stay in the file's mapping.
  std::span<std::byte> device_weights() const {
    return weights_ ? std::span(weights_->data(), weights_->size()) : std::span<std::byte>();
  }

 private:
  Engine(ModelFile file, std::optional<ModelFile> draft_file, Models models, std::shared_ptr<const Backend> backend,
         EngineOptions options, MemoryPlan plan, const LoadProgress& progress);

  ModelFile file_;
  std::optional<ModelFile> draft_file_;
  Models models_;
  std::shared_ptr<const Backend> backend_;
  EngineOptions options_;
  MemoryPlan plan_;
  mutable std::once_flag fingerprint_once_;
  mutable std::string fingerprint_;
  mutable std::recursive_mutex mutex_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Executor> steps_, prompts_;  // prompts_: null where no append is longer than a step's
  std::shared_ptr<PagePool> pages_;
  std::shared_ptr<EarlierOutputs> outputs_;
  mutable std::mutex costs_mutex_;
  mutable std::optional<StepCosts> step_costs_;
  std::unique_ptr<Memory> weights_, draft_weights_;  // null: they stay in the file's mapping
};

}  // namespace lb
