// Runs a minimal megakernel schedule: a norm, its product as logits, the sampler and the end of a step, until the token
// budget is used up.
#include <nanobind/stl/vector.h>

#include <array>
#include <cstring>

#include "bindings/kernels/bindings.h"
#include "bindings/kernels/gpu_call.h"
#include "engine/engine.h"
#include "engine/token_loop.h"
#include "gpu/megakernel/schedule/schedule.h"

using namespace nanobind::literals;

namespace lb::kernels {
namespace {

// `most`: maximum tokens of the launch; `allowed` ends it earlier. `missing`: arrivals that barriers wait for but that
// never come. `is_lost`: the mailboxes of a greedy choice never get their tags either.
nb::dict megakernel(PythonPack& pack, const nb::dict& norm_fields, const nb::dict& product_fields, uint32_t missing,
                    bool is_lost, int most, uint32_t allowed) {
  DeviceOp<RmsNorm> norm(pack, "rms_norm", norm_fields);
  norm.place();
  DeviceOp<Linear> product(pack, "linear", product_fields, {{"x", norm.op.y}});
  product.place();
  float* logits = product.op.y;
  const int n_out = product.op.n_out;
  gpu::Schedule schedule(pack.target());
  schedule.run_fused(norm.op, LinearGroup{{product.op}, 1});
  Call call(pack);

  struct Pinned {
    std::array<Sampled, 2> slots;
    uint32_t written, allowed, ended;
    gpu::MegaReport report;
  };
  const gpu::Buffer memory(pack.device(), sizeof(Pinned), gpu::Buffer::Kind::kPinned);
  std::memset(memory.data(), 0, memory.size());
  auto* pinned = reinterpret_cast<Pinned*>(memory.data());
  pinned->allowed = allowed;
  const SampleOptions options{.top_p = 1, .typical_p = 1, .repetition_penalty = 1, .n_top = -1};
  const auto zeros = [&](size_t count) { return static_cast<int32_t*>(call.zeros(count * sizeof(int32_t))); };
  const Sample sample{.logits = logits,
                      .options = call.in(&options, 1),
                      .bias = nullptr,
                      .counts = static_cast<TokenCounts*>(call.zeros(n_out * sizeof(TokenCounts))),
                      .history = zeros(most),
                      .state = static_cast<SampleState*>(call.zeros(sizeof(SampleState))),
                      .result = call.out<Sampled>(1),
                      .vocab = n_out,
                      .capacity = most};
  const NextToken next{.sampled = sample.result,
                       .ring = {.slots = pinned->slots.data(), .written = &pinned->written, .capacity = 2},
                       .n_written = static_cast<uint32_t*>(call.zeros(sizeof(uint32_t))),
                       .token = zeros(1),
                       .n_past = nullptr,
                       .key_buffer = nullptr,
                       .n_accepted = nullptr,
                       .accepted = nullptr,
                       .positions = nullptr,
                       .n_positions = 0};
  void* scratch = call.zeros(gpu::sample_scratch_bytes(n_out));
  const gpu::TokenBudget budget{&pinned->allowed, &pinned->ended, static_cast<uint32_t*>(call.zeros(sizeof(uint32_t)))};
  gpu::MegaPlan plan = schedule.compile(gpu::choose(sample, scratch, pack.target()).params, next, budget);
  for (gpu::Task& task : plan.tasks)
    if (task.kind == gpu::TaskKind::kSample && is_lost) task.sample.best_mailbox.phase += 1;
  uint32_t* arrived = static_cast<uint32_t*>(call.zeros(sizeof(uint32_t)));
  const gpu::Mega mega = {.tasks = call.in(plan.tasks),
                          .steps = call.in(plan.steps),
                          .streams = call.in(plan.streams),
                          .stream_counts = call.in(plan.stream_counts),
                          .arrived = arrived,
                          .mailboxes = static_cast<gpu::Mailbox*>(call.zeros(plan.n_mailboxes * sizeof(gpu::Mailbox))),
                          .first = missing,
                          .n_steps = plan.n_steps,
                          .n_phases = plan.n_phases,
                          .n_tokens = most,
                          .keep_going = budget.keep_going,
                          .n_streams = plan.n_streams,
                          .memory = plan.memory,
                          .timeout_ns = 2'000'000'000,
                          .report = &pinned->report,
                          .times = nullptr};
  pack.run(plan.launch, mega);
  pack.stream().synchronize();
  LB_CHECK(pinned->report.stuck == 0, kInternal, "[megakernel] a block gave up waiting for phase ",
           pinned->report.stuck - 1);
  const auto n_arrived = nb::cast<uint32_t>(call.read(arrived, 1)[0]);
  LB_CHECK(pinned->written == allowed && pinned->ended == allowed &&
               n_arrived == allowed * uint32_t(plan.n_phases * plan.n_blocks()),
           kInternal, "[megakernel] ", allowed, " tokens were allowed; written ", pinned->written, ", ended after ",
           pinned->ended, ", arrivals of blocks ", n_arrived);
  return product.fields.results();
}

// Decodes tokens, the first chosen from these logits. Requests up to `ahead` steps before reading their tokens, so that
// a launch has several.
std::vector<int32_t> decode_ahead(const Engine& engine, In<float, 1> logits, const Sampler& sampler, int n_tokens,
                                  int ahead) {
  LB_CHECK(ahead >= 1 && ahead <= 3, kInvalid, "1 to 3 steps can be asked for ahead, not ", ahead);
  const std::lock_guard lock(engine.executor().turn);
  const std::span<const LayerShape> layers = engine.model().layer_shapes();
  SequenceState state({layers.begin(), layers.end()}, engine.state_options(), *engine.executor().stream);
  const std::unique_ptr<TokenLoop> loop = engine.backend().make_loop(engine, state, nullptr);
  loop->sample(sampler, {logits.data(), logits.size()});
  std::vector<int32_t> ids;
  for (int started = 1; int(ids.size()) < n_tokens;) {
    for (; started < n_tokens && started <= int(ids.size()) + ahead; ++started) {
      started == 1 ? state.begin_append(1, {}) : state.begin_next();
      loop->step();
      state.end_append();
      state.commit_chain(1);
    }
    ids.push_back(loop->take());
  }
  return ids;
}

}  // namespace

void bind_gpu_megakernel(nb::module_& m) {
  m.def("decode_ahead", &decode_ahead, "engine"_a, "logits"_a, "sampler"_a, "n_tokens"_a, "ahead"_a,
        "Tokens from these logits on, with up to `ahead` steps asked for before their tokens are looked at.");
  m.def("megakernel", &megakernel, "pack"_a, "norm"_a, "product"_a, "missing"_a = 0, "is_lost"_a = false, "most"_a = 1,
        "allowed"_a = 1,
        "What a product of a norm, by the fields of either, writes as logits: one phase of a megakernel, before the "
        "sampler.");
}

}  // namespace lb::kernels
