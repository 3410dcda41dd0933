// One row per drafted token: x = in [embed(token); h], a few layers of Gemma 4, y = norm(x). The head of y proposes the
// next token, and h = out y continues the target's hidden row. The first h is the target's final normed row of the
// newest committed token. The embedding is the target's; the head is the assistant's own.
// The layers have no keys and values. Each attends to the target's last layer of its kind, full or sliding, at the
// committed slots. All rows of a draft have the position of the newest token, which those slots do not include.
#include "models/gemma4_assistant.h"

#include <algorithm>

#include "base/error.h"
#include "models/family.h"
#include "models/kept_row.h"
#include "ops/copy_rows.h"
#include "ops/rms_norm.h"

namespace lb {
namespace {

struct AssistantWeights {
  Weights model;
  Matrix in;   // [hidden, 2 * target hidden]: columns of the embedding first
  Matrix out;  // [target hidden, hidden]
};

class Gemma4Assistant final : public DraftModel {
 public:
  Gemma4Assistant(const ModelInfo& info, AssistantWeights weights, const Model& target)
      : DraftModel("assistant", target),
        info_(info),
        w_(std::move(weights)),
        rope_(w_.model.rope),
        sliding_rope_(w_.model.second_rope) {
    taps_ = {target.info().n_layers - 1};
    max_depth_ = kMaxChain;
    is_sequential_ = reads_target_cache_ = true;
    n_rot_ = info_.n_rot;
    AttentionSizes sizes{info_.n_heads, info_.n_heads, 0};
    for (const Layer& layer : w_.model.layers) {
      sizes.n_kv_heads = std::min(sizes.n_kv_heads, mixer(layer).n_kv_heads);
      sizes.head_dim = std::max(sizes.head_dim, mixer(layer).head_dim);
      sizes.key_tail = std::max(sizes.key_tail, mixer(layer).key_tail());
    }
    finish({RowShape{target_hidden()}}, sizes, std::move(w_.model.copies));
  }

  void for_each_group(const GroupVisitor& group) const override {
    group({&w_.in});
    for (const Layer& layer : w_.model.layers) mixer(layer).groups(group), mlp(layer).groups(group);
    group({&w_.out}), group({&w_.model.head});
  }

  void context(const DraftRows& rows, const DraftWorkspace& ws, Activations, Stream& stream) const override {
    Carver scratch = ws.scratch;
    kept_row().append(rows, scratch.take<float>(static_cast<size_t>(rows.rows) * target_hidden()), stream);
  }
  void begin_steps(const StepRing& ring, int slot, SequenceState& state, Stream& stream) const override {
    kept_row().begin_steps(ring, slot, state, stream);
  }
  void step_context(const StepRing&, int, const DraftRows&, const DraftWorkspace&, Activations,
                    Stream&) const override {}  // the layers have no rows of their own
  void end_steps(const StepRing& ring, int slot, SequenceState& state, Stream& stream) const override {
    kept_row().end_steps(ring, slot, state, stream);
  }
  void propose(const DraftRoot& root, int depth, SequenceState& state, const DraftWorkspace& ws,
               Activations activations, Stream& stream) const override;

 private:
  // Scratch of one drafted row.
  struct Buffers {
    float* both;                       // [2 * target hidden]
    float *x, *y;                      // [hidden] residual stream; a normed input, or a branch
    float *sliding_cos, *sliding_sin;  // [n_pairs]
    Buffers(Carver& scratch, const Gemma4Assistant& draft) {
      both = scratch.take<float>(2 * size_t(draft.target_hidden()));
      x = scratch.take<float>(draft.info_.hidden);
      y = scratch.take<float>(draft.info_.hidden);
      sliding_cos = scratch.take<float>(draft.sliding_rope_.n_pairs);
      sliding_sin = scratch.take<float>(draft.sliding_rope_.n_pairs);
    }
  };

  static const AttentionBlock& mixer(const Layer& layer) { return std::get<AttentionBlock>(layer.mixer); }
  static const SwiGluMlp& mlp(const Layer& layer) { return std::get<SwiGluMlp>(layer.ffn); }

  int target_hidden() const { return target_.info().hidden; }
  KeptRow kept_row() const { return {state_layer(0), shard(), target_hidden()}; }
  RmsNorm norm(const float* x, const float* w, float* y) const {
    return {x, w, y, 1, 1, info_.hidden, info_.hidden, info_.hidden, info_.eps};
  }
  void add_branch(const Buffers& b, const float* w, float scale, Stream& stream) const {
    run(AddNorm{b.x, b.y, w, b.x, 1, info_.hidden, info_.eps, scale}, stream);
  }
  void run_layer(const Layer& layer, const Buffers& b, const Step& step) const;

  size_t scratch_bytes(int max_rows) const override {
    Carver context, propose;
    context.take<float>(static_cast<size_t>(max_rows) * target_hidden());
    Buffers(propose, *this);
    size_t most = context.used();
    for (const Layer& layer : w_.model.layers) {
      Carver of_mixer = propose, of_mlp = propose;
      mixer(layer).carve(of_mixer, 1), mlp(layer).carve(of_mlp, 1);
      most = std::max({most, of_mixer.used(), of_mlp.used()});
    }
    return most;
  }

  void visit(const WeightVisitor& visitor) override {
    visitor.matrix(w_.in), visitor.matrix(w_.out), visitor.matrix(w_.model.head);
    visitor(w_.model.final_norm, info_.hidden);
    for (Layer& layer : w_.model.layers) {
      std::get<AttentionBlock>(layer.mixer).visit(visitor.matrix, visitor);
      std::get<SwiGluMlp>(layer.ffn).visit(visitor.matrix, visitor);
      for (const float** norm : {&layer.mixer_norm, &layer.mixer_post_norm, &layer.ffn_norm, &layer.ffn_post_norm})
        visitor(*norm, info_.hidden);
    }
    rope_.visit(visitor), sliding_rope_.visit(visitor);
  }

  ModelInfo info_;
  AssistantWeights w_;
  RopeTables rope_, sliding_rope_;
};

void Gemma4Assistant::run_layer(const Layer& layer, const Buffers& b, const Step& step) const {
  constexpr int kNoLayer = -1;  // the layer has no rows in the state
  mixer(layer).forward(kNoLayer, norm(b.x, layer.mixer_norm, b.y), nullptr, b.y, step);
  add_branch(b, layer.mixer_post_norm, 1, step.stream);
  mlp(layer).forward(norm(b.x, layer.ffn_norm, b.y), nullptr, b.y, step);
  add_branch(b, layer.ffn_post_norm, layer.scale, step.stream);
}

void Gemma4Assistant::propose(const DraftRoot& root, int depth, SequenceState& state, const DraftWorkspace& ws,
                              Activations activations, Stream& stream) const {
  check(depth, state);
  LB_ASSERT(state.n_tokens() > 0);
  const int h = target_hidden();
  Carver scratch = ws.scratch;
  const Buffers b(scratch, *this);
  float* const hidden = b.both + h;
  run(rope_.table(root.positions, 1, ws.cos, ws.sin), stream);
  run(sliding_rope_.table(root.positions, 1, b.sliding_cos, b.sliding_sin), stream);
  kept_row().read(state, hidden, stream);
  run(RmsNorm{hidden, target_.final_norm(), hidden, 1, 1, h, h, h, target_.info().eps}, stream);
  // The row takes the place of the newest committed row, so that attention ends at that row's slot.
  const Segment row{0, 1, {}, root.last_slot, &state, shard()};
  Step step{1, {&row, 1}, ws.cos, ws.sin, activations, scratch, stream};
  step.second = {b.sliding_cos, b.sliding_sin};
  for (int d = 0; d < depth; ++d) {
    if (d > 0) run(CopyRows{ws.hidden + (d - 1) * h, hidden, 1, h, 1, h}, stream);
    target_.embed_drafts(d == 0 ? root.token : ws.ids + (d - 1) * n_candidates_, 1, b.both, stream);
    run(product(w_.in, b.both, b.x, 1, activations, stream), stream);
    for (const Layer& layer : w_.model.layers) run_layer(layer, b, step);
    run(norm(b.x, w_.model.final_norm, b.y), stream);
    run(product(w_.model.head, b.y, ws.logits, 1, activations, stream), stream);
    run(product(w_.out, b.y, ws.hidden + d * h, 1, activations, stream), stream);
    top_tokens(ws, d, 1, 1, 0, stream);
  }
}

// --- binding

void check_equal(const Fields& fields, const char* what, int of_draft, int of_target) {
  LB_CHECK(of_draft == of_target, kUnsupported, fields.path(), ": the assistant is for a target with ", what, " ",
           of_draft, "; the target has ", of_target);
}

// Lets each layer read the target's last cache of its kind.
void connect(const Fields& fields, FamilyConfig& config, const Model& target) {
  for (LayerKind& layer : config.layers) {
    const bool has_window = layer.window > 0;
    layer.kv_from = target.last_kv_layer(has_window);
    LB_CHECK(layer.kv_from >= 0, kUnsupported, fields.path(), ": the assistant reads a ",
             has_window ? "sliding" : "full", " attention layer of its target, which has none");
    const KvShape& cache = std::get<KvShape>(target.layer_shapes()[layer.kv_from]);
    check_equal(fields, has_window ? "sliding heads of" : "full heads of", layer.head_dim, cache.head_dim);
    check_equal(fields, has_window ? "sliding KV heads" : "full KV heads", layer.n_kv_heads, cache.n_kv_heads);
    check_equal(fields, "a window of", layer.window, cache.window);
  }
}

}  // namespace

bool is_gemma4_assistant(const ModelFile& file) {
  if (file.gguf() != nullptr) {
    const std::string_view name = file.gguf()->metadata.find_string("general.architecture").value_or("");
    LB_CHECK(name != "gemma4_assistant" && name != "gemma4_mtp", kUnsupported, file.path, ": architecture \"", name,
             "\" is of a converter before llama.cpp's own; convert the assistant again, to ", kGemma4Assistant.gguf);
    return name == kGemma4Assistant.gguf;
  }
  const Json* type = file.safetensors()->config.find("model_type");
  if (type == nullptr || !type->is_string()) return false;
  return type->string() == "gemma4_assistant" || type->string() == "gemma4_unified_assistant";
}

std::unique_ptr<DraftModel> make_gemma4_assistant(const ModelFile& file, const Model& target) {
  LB_CHECK(target.info().architecture == kGemma4.gguf, kUnsupported, file.path,
           ": the assistant drafts for Gemma 4, and the target is ", target.info().architecture);
  LB_CHECK(!target.is_slice(), kUnsupported, file.path,
           ": the assistant reads all keys and values of its target, which split = tensor divides. Name one device");
  const Fields fields(file, kGemma4Assistant.gguf, kGemma4Assistant.defaults);
  FamilyConfig config = read_config(kGemma4Assistant, fields);
  connect(fields, config, target);
  ModelInfo& info = config.info;
  Binder binder(file);
  const TensorName in{"nextn.pre_projection.weight", "pre_projection.weight", true};
  const TensorName out{"nextn.post_projection.weight", "post_projection.weight", true};
  const int h = target.info().hidden;
  check_equal(fields, "hidden size", binder.height(out), h);
  AssistantWeights w;
  w.model = bind_common(binder, fields, info, kGemma4Assistant.norms, kGemma4Assistant.ffn_norm);
  check_equal(fields, "a vocabulary of", info.vocab, target.info().vocab);
  kGemma4Assistant.bind_ropes(fields, binder, config, w.model);
  bind_layers(binder, kGemma4Assistant, config, w.model, &target);
  w.in = binder.matrix(in, info.hidden, 2 * h, Split::none());
  w.out = binder.matrix(out, h, info.hidden, Split::none());
  binder.skip([&](std::string_view name) { return kGemma4Assistant.skips(name, config); });
  binder.finish();
  w.model.copies = binder.take_copies();
  return std::make_unique<Gemma4Assistant>(info, std::move(w), target);
}

}  // namespace lb
