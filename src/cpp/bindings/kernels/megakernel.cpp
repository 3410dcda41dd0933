// Runs a minimal megakernel schedule: ops that end with products, the last one as logits, the sampler and the end of a
// step, until the token budget is used up.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <cstring>

#include "bindings/kernels/bindings.h"
#include "bindings/kernels/op_memory.h"
#include "bindings/kernels/program.h"
#include "bindings/kernels/stream_arrays.h"
#include "engine/engine.h"
#include "engine/token_loop.h"
#include "gpu/megakernel/schedule/schedule.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lb::kernels {
namespace {

// `most`: maximum tokens of the launch; `allowed` ends it earlier. `missing`: arrivals that barriers wait for but that
// never come. `is_lost`: the mailboxes of a greedy choice never get their tags either.
std::vector<OpResults> megakernel(PythonPack& pack, const std::vector<OpCall>& calls, uint32_t missing, bool is_lost,
                                  int most, uint32_t allowed) {
  DeviceMemory op_memory(pack);
  Program program(op_memory, calls, &pack.target());
  float* logits = program.group().products[0].y;
  const int n_out = program.group().products[0].n_out;
  gpu::Schedule schedule(pack.target());
  program.run(schedule);
  GpuStream stream(pack.shared(), 0, 0);
  StreamArrays arrays(stream);

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
  const Sample sample{.logits = logits,
                      .options = arrays.copy(&options, 1),
                      .bias = nullptr,
                      .counts = arrays.zeros<TokenCounts>(n_out),
                      .history = arrays.zeros<int32_t>(most),
                      .state = arrays.zeros<SampleState>(1),
                      .result = arrays.zeros<Sampled>(1),
                      .vocab = n_out,
                      .capacity = most};
  const NextToken next{.sampled = sample.result,
                       .ring = {.slots = pinned->slots.data(), .written = &pinned->written, .capacity = 2},
                       .n_written = arrays.zeros<uint32_t>(1),
                       .token = arrays.zeros<int32_t>(1),
                       .n_past = nullptr,
                       .key_buffer = nullptr,
                       .n_accepted = nullptr,
                       .accepted = nullptr,
                       .positions = nullptr,
                       .n_positions = 0};
  void* scratch = arrays.zeros<std::byte>(gpu::sample_scratch_bytes(n_out));
  const gpu::TokenBudget budget{&pinned->allowed, &pinned->ended, arrays.zeros<uint32_t>(1)};
  gpu::MegaPlan plan = schedule.compile(gpu::choose(sample, scratch, pack.target()).params, next, budget);
  for (gpu::Task& task : plan.tasks)
    if (task.kind == gpu::TaskKind::kSample && is_lost) task.sample.best_mailbox.phase += 1;
  uint32_t* arrived = arrays.zeros<uint32_t>(1);
  const gpu::Mega mega = {.tasks = arrays.copy(plan.tasks),
                          .steps = arrays.copy(plan.steps),
                          .streams = arrays.copy(plan.streams),
                          .stream_counts = arrays.copy(plan.stream_counts),
                          .arrived = arrived,
                          .mailboxes = arrays.zeros<gpu::Mailbox>(plan.n_mailboxes),
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
  pack.launches().push_back(plan.launch);
  pack.shared()->run(plan.launch, mega, stream.queue());
  stream.wait();
  LB_CHECK(pinned->report.stuck == 0, kInternal, "[megakernel] a block gave up waiting for phase ",
           pinned->report.stuck - 1);
  uint32_t n_arrived = 0;
  stream.download(&n_arrived, arrived, sizeof n_arrived);
  LB_CHECK(pinned->written == allowed && pinned->ended == allowed &&
               n_arrived == allowed * uint32_t(plan.n_phases * plan.n_blocks()),
           kInternal, "[megakernel] ", allowed, " tokens were allowed; written ", pinned->written, ", ended after ",
           pinned->ended, ", arrivals of blocks ", n_arrived);
  return program.results();
}

// Decodes tokens, the first chosen from these logits. Requests up to `ahead` steps before reading their tokens, so that
// a launch has several.
std::vector<int32_t> decode_ahead(const Engine& engine,
                                  nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu> logits,
                                  const Sampler& sampler, int n_tokens, int ahead) {
  LB_CHECK(ahead >= 1 && ahead <= 3, kInvalid, "1 to 3 steps can be asked for ahead, not ", ahead);
  const std::lock_guard lock(engine.buffers().turn);
  const std::span<const LayerShape> layers = engine.model().layer_shapes();
  SequenceState state({layers.begin(), layers.end()}, engine.state_options(), *engine.buffers().stream);
  const std::unique_ptr<TokenLoop> loop = engine.backend().make_loop(engine, state, {});
  loop->sample(sampler, {logits.data(), logits.size()});
  std::vector<int32_t> ids;
  for (int started = 1; int(ids.size()) < n_tokens;) {
    for (; started < n_tokens && started <= int(ids.size()) + ahead; ++started) {
      started == 1 ? state.begin_append(1, false) : state.begin_next();
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
  m.def("megakernel", &megakernel, "pack"_a, "calls"_a, "missing"_a = 0, "is_lost"_a = false, "most"_a = 1,
        "allowed"_a = 1,
        "run() of a call as phases of a megakernel before the sampler, which takes what its first product writes as "
        "logits.");
}

}  // namespace lb::kernels
