#include "engine/step_plan.h"

#include <algorithm>
#include <variant>

#include "base/error.h"
#include "engine/gpu_token_loop.h"
#include "engine/pass_buffers.h"
#include "gpu/megakernel/shape.h"
#include "state/pieces.h"

namespace lb {

int step_rows(const EngineOptions& options) {
  return options.batch_invariant ? std::min(kMaxStepRows, PassBuffers::step_rows(options)) : 1;
}

Sample sample_op(const StepBuffers& b, int vocab, int context) {
  return {.logits = b.logits,
          .options = b.options,
          .bias = b.bias,
          .mask = b.mask,
          .counts = b.counts,
          .history = b.history,
          .state = b.state,
          .result = b.result,
          .vocab = vocab,
          .capacity = StepBuffers::history_capacity(context)};
}

NextToken next_token_op(const StepBuffers& b, Ring* ring, AppendNumbers* numbers) {
  return {.sampled = b.result,
          .ring = {ring->slots.data(), &ring->written, Ring::kSlots},
          .n_written = b.n_written,
          .token = b.tokens(),
          .n_past = &numbers->n_past,
          .key_buffer = &numbers->key_buffer,
          .n_accepted = &numbers->n_accepted,
          .accepted = numbers->accepted,
          .positions = b.positions,
          .n_positions = 3 * b.rows};
}

void run_step(const Model& model, const Workspace& workspace, const StepTaps& taps, const StepBuffers& b,
              Activations activations, SequenceState& state, Stream& stream, int shard) {
  const Segment row{0, 1, {}, state.n_past(shard), &state, shard};
  const Append append = {.tokens = {b.tokens(), size_t(b.rows)},
                         .positions = {b.positions, 3 * size_t(b.rows)},
                         .segments = {&row, 1},
                         .outputs = {taps.layers, taps.row},
                         .interrupted = nullptr};
  model.forward(append, workspace, activations, stream);
  taps.keep(state.n_past(shard), stream);
  model.head(workspace.y, b.rows, b.logits, activations, stream);
}

bool wants_mega(const Model& model, const EngineOptions& options, const gpu::Target& target) {
  const size_t max_bytes = size_t(target.tune("megakernel_max_mib")) << 20;
  const int slots = model.expert_slots();
  LB_CHECK(!options.batch_invariant || options.decode_path != DecodePath::kMegakernel, kInvalid,
           "decode_path = megakernel has sums of another order than batch_invariant. Use auto or graph");
  if (options.batch_invariant) return false;
  LB_CHECK(slots == 0 || options.decode_path != DecodePath::kMegakernel, kUnsupported,
           "decode_path = megakernel: the megakernel needs all experts in device memory, and ", slots, " of the ",
           model.info().experts.n, " of each layer are there. Use auto or graph");
  // The megakernel sums in another order than the graph, which alone decodes with experts in slots. No bit may depend
  // on where experts are, so the megakernel decodes a mixture only if the options name it.
  const bool is_mixture = model.info().experts.n > 0;
  LB_CHECK(
      !is_mixture || !model.is_slice() || options.decode_path != DecodePath::kMegakernel, kUnsupported,
      "decode_path = megakernel: the megakernel takes no mixture of experts that is split by tensors. Use auto or ",
      "graph");
  return options.decode_path == DecodePath::kMegakernel ||
         (options.decode_path == DecodePath::kAuto && !is_mixture && model.bytes_per_token() <= max_bytes);
}

int max_mega_tokens(const Model& model, const SequenceState& state, const EngineOptions& options,
                    const gpu::Target& target) {
  if (options.decode_path == DecodePath::kMegakernel) return state.capacity();
  StateOptions counted = state.options();
  for (KvType* type : {&counted.k_type, &counted.v_type})
    if (kKvTraits[int(*type)].bits < 16) *type = KvType::kF32;
  int max_head_dim = 1;
  size_t page = 0;
  for (const LayerShape& shape : model.layer_shapes())
    if (const auto* kv = std::get_if<KvShape>(&shape)) {
      max_head_dim = std::max(max_head_dim, kv->head_dim);
      if (kv->window == 0) page += page_bytes(*kv, counted);
    }
  const size_t bytes = (size_t(target.tune("megakernel_max_kv_mib")) << 20) * max_head_dim / gpu::kSplitMaxDim;
  return int(std::min(bytes * kPageTokens / std::max(page, size_t(1)), size_t(state.capacity())));
}

bool allows_graph(const Error& error, const EngineOptions& options) {
  return options.decode_path == DecodePath::kAuto && error.code() == ErrorCode::kUnsupported;
}

gpu::MegaPlan plan_mega(const Model& model, Activations activations, SequenceState& state, const Workspace& workspace,
                        const StepTaps& taps, const StepBuffers& b, Ring* ring, const gpu::Target& target, int shard) {
  gpu::Schedule schedule(target);
  state.begin_plan();
  try {
    run_step(model, workspace, taps, b, activations, state, schedule, shard);
  } catch (...) {
    state.abort_append();
    throw;
  }
  state.abort_append();  // nothing was computed
  const gpu::SampleLaunches sample = gpu::choose(sample_op(b, model.info().vocab, state.capacity()), b.scratch, target);
  return schedule.compile(sample.params, next_token_op(b, ring, state.numbers(shard)),
                          {&ring->allowed, &ring->ended, &b.start->keep_going});
}

size_t gpu_token_loop_bytes(const Model& model, const EngineOptions& options, int context) {
  Carver counter;
  StepBuffers(counter, model, context, step_rows(options));
  return counter.used();
}

size_t gpu_step_bytes(const Models& models, const EngineOptions& options, const gpu::Target& target) {
  const Model& model = *models.target;
  if (!wants_mega(model, options, target)) return 0;
  const int context = options.context == 0 ? kPageTokens : options.context;  // any: the tables do not depend on it
  gpu::Schedule planner(target);
  SequenceState state({model.layer_shapes().begin(), model.layer_shapes().end()}, {context, options.kv.k, options.kv.v},
                      planner);
  const auto workspace = planner.reserve(model.workspace_bytes(1)),
             memory = planner.reserve(gpu_token_loop_bytes(model, options, context));
  const int width = models.draft ? models.draft->tap_width() : 0;
  const auto row = planner.reserve(width * sizeof(float)), step_ring = planner.reserve(width * sizeof(float));
  const auto floats = [](const Memory& at) { return reinterpret_cast<float*>(at.data()); };
  StepTaps taps;
  if (models.draft) taps = {models.draft->taps(), floats(*row), floats(*step_ring), width};
  Carver carver(*memory);
  Ring ring{};
  try {
    return MegaSteps::planned_bytes(plan_mega(model, options.activations, state, model.workspace(Carver(*workspace), 1),
                                              taps, StepBuffers(carver, model, context, 1), &ring, target));
  } catch (const Error& error) {
    if (!allows_graph(error, options)) throw;
    return 0;
  }
}

}  // namespace lb
