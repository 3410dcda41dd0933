// PassBuffers: the stream and the buffers of forward passes on one device.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "engine/backend.h"
#include "engine/device.h"
#include "engine/options.h"
#include "engine/recorded_appends.h"
#include "state/sequence_state.h"

namespace lb {

// Inputs of a pass over several sequences, sent in one upload.
struct PassInputs {
  static constexpr int kRows = 32;  // maximum; on a GPU the summation order is the same for 2 to kRows rows
  uint64_t ancestors[kRows];
  int32_t tokens[kRows], parents[kRows];
  int32_t positions[3 * kRows];  // [3, rows]
  AppendNumbers numbers[kRows];  // one per segment that is a chain
};

// The stream and the buffers of a forward pass on one shard. A shard has two pass buffers: one for steps and one for
// long prompt chunks, between whose layers other sessions may step. Sessions lock `turn`, which is the engine's.
struct PassBuffers {
  static constexpr int kLogitRows = 32;  // rows of logits computed together
  // Rows of the longest append that uses the steps' buffers. Prompt chunks are longer by default.
  static constexpr int kStepRows = 256;
  static int step_rows(const EngineOptions& options);

  PassBuffers(const Models& models, const EngineOptions& options, const NetworkPart& part, int max_rows, Stream& stream,
              EngineTurn& turn);
  static size_t planned_bytes(const Models& models, const EngineOptions& options, const NetworkPart& part,
                              int max_rows);

  EngineTurn& turn;
  Stream* stream;
  int max_rows;
  bool is_held = false;  // held by a prompt chunk, between whose layers other sessions compute
  std::unique_ptr<Memory> memory;
  Workspace workspace;
  // In the stream's memory: inputs and outputs of the ops.
  int32_t* tokens;         // [max_rows]
  int32_t* positions;      // [3, rows] of an append, at most max_rows
  int32_t* last_seen;      // [max_rows], if images are whole; else null
  int32_t* parents;        // [kMaxTree]; this and the next two: steps only
  uint64_t* ancestors;     // [kMaxTree]
  float* logits;           // [kLogitRows, vocab]; null but on the last shard
  DraftWorkspace draft{};  // the draft model's buffers; null without one. Where it is elsewhere, only taps to hand over
  PassInputs* pass;        // [1]
  RecordedAppends recorded_passes;
  int32_t* draft_n_past = nullptr;     // [1] tokens before rows of plain steps (StepRows); null without a draft model
  std::optional<SparseBlocks> sparse;  // buffers for prompts; without them attention is dense

 private:
  static void carve_io(PassBuffers* self, Carver& carver, const Models& models, const EngineOptions& options,
                       const NetworkPart& part, int max_rows);
};

}  // namespace lb
