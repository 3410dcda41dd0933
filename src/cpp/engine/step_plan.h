// A decode step of a GPU's token loop: its buffers, its ops, and its plan as a launch of the megakernel.
#pragma once

#include "engine/mega_steps.h"
#include "engine/options.h"
#include "engine/step_rows.h"
#include "models/model.h"
#include "ops/sample.h"
#include "state/sequence_state.h"

namespace lb {

// Adjacent, so that one read fetches both.
struct StepStart {
  int32_t token;
  uint32_t keep_going;  // gpu::TokenBudget
};

int step_rows(const EngineOptions& options);

struct StepBuffers {
  float* logits;  // [rows, vocab]
  StepStart* start;
  int32_t* padded;     // [rows] the token and zeros of a step of more than one row
  int32_t* positions;  // [3, rows]
  SampleOptions* options;
  float* bias;
  uint32_t* mask;
  TokenCounts* counts;
  int32_t* history;
  SampleState* state;
  Sampled* result;
  uint32_t* n_written;
  std::byte* scratch;

  int rows;

  StepBuffers(Carver& carver, const Model& model, int context, int rows)
      : StepBuffers(carver, model.info().vocab, context, rows) {}

  int32_t* tokens() const { return rows == 1 ? &start->token : padded; }  // [rows] of a step

  // Capacity for the context, the token just beyond it, and the token chosen ahead.
  static int history_capacity(int context) { return context + 2; }

 private:
  StepBuffers(Carver& carver, int vocab, int context, int rows)
      : logits(carver.take<float>(size_t(rows) * vocab)),
        start(carver.take<StepStart>(1)),
        padded(carver.take<int32_t>(rows == 1 ? 0 : rows)),
        positions(carver.take<int32_t>(3 * rows)),
        options(carver.take<SampleOptions>(1)),
        bias(carver.take<float>(vocab)),
        mask(carver.take<uint32_t>(mask_words(vocab))),
        counts(carver.take<TokenCounts>(vocab)),
        history(carver.take<int32_t>(history_capacity(context))),
        state(carver.take<SampleState>(1)),
        result(carver.take<Sampled>(1)),
        n_written(carver.take<uint32_t>(1)),
        scratch(carver.take<std::byte>(gpu::sample_scratch_bytes(vocab))),
        rows(rows) {}
};

Sample sample_op(const StepBuffers& b, int vocab, int context);
NextToken next_token_op(const StepBuffers& b, Ring* ring, AppendNumbers* numbers);

// The tapped row of a step, for the draft model: computed in `row`, then copied to a ring. No layers: no taps.
struct StepTaps {
  std::span<const int> layers{};
  float* row = nullptr;   // [width]
  float* ring = nullptr;  // [StepRing::kRows, width]
  int width = 0;

  void keep(const int32_t* slot, Stream& stream) const {
    if (layers.empty()) return;
    run(
        CopyRows{
            .x = row, .y = ring, .rows = 1, .dim = width, .y_rows = StepRing::kRows, .y_stride = width, .first = slot},
        stream);
  }
};

// Runs a step's forward pass.
void run_step(const Model& model, const Workspace& workspace, const StepTaps& taps, const StepBuffers& b,
              Activations activations, SequenceState& state, Stream& stream, int shard = 0);

// Whether the options and the target's rule prefer the megakernel. Throws if the options require it and the model
// cannot have it.
bool wants_mega(const Model& model, const EngineOptions& options, const gpu::Target& target);
// The longest context, in tokens, at which the megakernel runs the steps: the graph reads long K and V faster. A
// megakernel tile has a fixed number of slots, so it reads heads of half the width half as fast. It dequantises packed
// KV types with no more threads than it has for f16, so there the graph catches up at half the length
// (docs/kernels/megakernel.md).
int max_mega_tokens(const Model& model, const SequenceState& state, const EngineOptions& options,
                    const gpu::Target& target);
// Whether a graph may replace the megakernel: not if the options name the megakernel.
bool allows_graph(const Error& error, const EngineOptions& options);
// Compiles a decode step of a new sequence. Throws kUnsupported if the target has no kernel for it.
gpu::MegaPlan plan_mega(const Model& model, Activations activations, SequenceState& state, const Workspace& workspace,
                        const StepTaps& taps, const StepBuffers& b, Ring* ring, const gpu::Target& target,
                        int shard = 0);

}  // namespace lb
