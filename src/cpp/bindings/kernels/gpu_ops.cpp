// Runs or times any single op on a pack's device, and measures the device's read bandwidth.
#include <functional>

#include "bindings/kernels/bindings.h"
#include "bindings/kernels/gpu_call.h"
#include "bindings/kernels/gpu_timing.h"
#include "gpu/choose_several.h"

using namespace nanobind::literals;

namespace lb::kernels {
namespace {

// The launches of an op, in order, with shared parameters.
template <class Params>
struct Launches {
  std::vector<gpu::Launch> launches;
  Params params;
};

template <class Op>
Launches<Op> launches_of(PythonPack& pack, OpFields&, const Op& op) {
  return {{gpu::choose(op, pack.target())}, op};
}

// The cache's capacity is the page table's.
Launches<gpu::AttentionSplits> launches_of(PythonPack& pack, OpFields& fields, const Attention& op) {
  const KvLayer& cache = op.cache;
  const int capacity = int(fields.size("page_table")) * kPageTokens;
  void* scratch = fields.scratch(
      op.rows == 1
          ? gpu::attention_row_scratch_bytes(op.n_heads, cache.n_kv_heads, cache.head_dim, capacity, pack.target())
          : gpu::attention_scratch_bytes(op.rows, op.n_heads, cache.head_dim, capacity, pack.target()));
  const gpu::AttentionLaunches all = gpu::choose(op, capacity, scratch, pack.target());
  return {{all.launches, all.launches + all.n}, all.params};
}

Launches<gpu::DeltaWork> launches_of(PythonPack& pack, OpFields& fields, const GatedDelta& op) {
  void* scratch = fields.scratch(gpu::gated_delta_scratch_bytes(op, pack.target()));
  const gpu::DeltaLaunches all = gpu::choose(op, static_cast<float*>(scratch), pack.target());
  return {{all.launches, all.launches + all.n}, all.params};
}

Launches<gpu::KvMoves> launches_of(PythonPack& pack, OpFields&, const KvMove& op) {
  const gpu::MoveLaunch move = gpu::choose(std::span(&op, 1), pack.target());
  return {{move.launch}, move.params};
}

Launches<KeyScores> launches_of(PythonPack& pack, OpFields&, const KeyScores& op) {
  const auto both = gpu::choose(op, pack.target());
  return {{both.begin(), both.end()}, op};
}

Launches<gpu::TopTokensInSlices> launches_of(PythonPack& pack, OpFields& fields, const TopTokens& op) {
  const gpu::TopTokensLaunches top =
      gpu::choose(op, fields.scratch(gpu::top_tokens_scratch_bytes(op.rows)), pack.target());
  return {{std::begin(top.launches), std::end(top.launches)}, top.params};
}

Launches<gpu::ScoredCandidates> launches_of(PythonPack& pack, OpFields& fields, const SelectCandidates& op) {
  void* scratch = fields.scratch(gpu::select_scratch_bytes(op.rows, op.k));
  const gpu::SelectLaunches select = gpu::choose(op, static_cast<float*>(scratch), pack.target());
  return {{std::begin(select.launches), std::end(select.launches)}, select.params};
}

template <class Params>
void start(PythonPack& pack, const Launches<Params>& all) {
  for (const gpu::Launch& launch : all.launches) pack.run(launch, all.params);
}

// Ops that leave counters in their scratch run twice with the same scratch, as in graph replays.
template <class Op>
constexpr int kRuns = std::is_same_v<Op, Attention> || std::is_same_v<Op, TopTokens> ? 2 : 1;

template <class Op>
nb::dict run_op(PythonPack& pack, DeviceOp<Op>& op) {
  op.place();
  const auto all = launches_of(pack, op.fields, op.op);
  for (int i = 0; i < kRuns<Op>; ++i) start(pack, all);
  return op.fields.results();
}

// `rounded`, an extra argument: the number of bits to which the merge kernel quantises o.
nb::dict run_op(PythonPack& pack, DeviceOp<Attention>& attention) {
  RoundedRows rounded{};
  const Attention& op = attention.op;
  attention.fields.rounded("rounded", rounded, op.rows, op.n_heads * op.cache.head_dim);
  attention.place();
  auto all = launches_of(pack, attention.fields, op);
  LB_CHECK(!rounded.high || (all.launches.size() == 2 && gpu::can_round(op)), kInvalid,
           "only merged splits of whole blocks are rounded");
  all.params.rounded = rounded;
  for (int i = 0; i < kRuns<Attention>; ++i) start(pack, all);
  return attention.fields.results();
}

nb::dict run_op(PythonPack& pack, DeviceOp<Linear>& linear) {
  linear.place();
  const Linear& op = linear.op;
  auto* rounded = static_cast<std::byte*>(linear.fields.scratch(rounded_bytes(op.rows, op.n_in, true)));
  run(pack, LinearGroup{{op}, 1}, rounded);
  return linear.fields.results();
}

nb::dict run_op(PythonPack&, DeviceOp<DeltaNet>&) {
  fail(ErrorCode::kUnsupported, "[delta_net] has no launch of its own");
}

nb::dict run_named(PythonPack& pack, const std::string& name, const nb::kwargs& given) {
  return with_op(name, [&](auto zeroed) {
    DeviceOp<decltype(zeroed)> op(pack, name, given);
    return run_op(pack, op);
  });
}

// The per-sequence parameters of a batched launch.
template <class Params>
const Params& params_of_row(const Params& params) {
  return params;
}
const GatedDelta& params_of_row(const gpu::DeltaWork& work) { return work.op; }

template <class Op>
std::vector<nb::dict> run_each(PythonPack& pack, const std::string& name, const std::vector<nb::dict>& given) {
  LB_CHECK(!given.empty() && given.size() <= gpu::kMaxSeveral, kInvalid, "1 to ", gpu::kMaxSeveral,
           " sequences share a launch, got ", given.size());
  std::deque<DeviceOp<Op>> ops;
  std::vector<decltype(launches_of(pack, ops[0].fields, ops[0].op))> all;
  gpu::Several<std::remove_cvref_t<decltype(params_of_row(all[0].params))>> params;
  for (size_t i = 0; i < given.size(); ++i) {
    DeviceOp<Op>& op = ops.emplace_back(pack, name, given[i]);
    op.place();
    all.push_back(launches_of(pack, op.fields, op.op));
    params.of[i] = params_of_row(all[i].params);
  }
  for (const gpu::Launch& one : all[0].launches) {
    if (const auto launch = gpu::for_several(one, int(given.size()), pack.target()))
      pack.run(*launch, params);
    else  // as the engine does
      for (const auto& row : all) pack.run(one, row.params);
  }
  std::vector<nb::dict> results;
  for (DeviceOp<Op>& op : ops) results.push_back(op.fields.results());
  return results;
}

std::vector<nb::dict> run_several(PythonPack& pack, const std::string& name, const std::vector<nb::dict>& given) {
  if (name == "attention") return run_each<Attention>(pack, name, given);
  if (name == "attention_prepare") return run_each<AttentionPrepare>(pack, name, given);
  if (name == "delta_inputs") return run_each<DeltaInputs>(pack, name, given);
  if (name == "gated_delta") return run_each<GatedDelta>(pack, name, given);
  if (name == "copy_rows") return run_each<CopyRows>(pack, name, given);
  fail(ErrorCode::kInvalid, "no kernel does ", name, " for several sequences");
}

void add_work(nb::dict&, OpFields&, const auto&) {}
void add_work(nb::dict& result, OpFields& fields, const Attention& op) {
  const int n_past = int(fields.largest("n_past", 0));
  result["bytes"] = gpu::bytes_of(op, n_past);
  result["flops"] = gpu::flops_of(op, n_past);
}

nb::dict time_op(PythonPack& pack, const std::string& name, int sets, int replays, int tries, const nb::kwargs& given) {
  LB_CHECK(sets >= 1 && replays >= 1 && tries >= 1, kInvalid, "sets, replays and tries must be at least 1");
  return with_op(name, [&]<class Op>(Op) -> nb::dict {
    if constexpr (std::is_same_v<Op, Linear> || std::is_same_v<Op, DeltaNet>) {
      fail(ErrorCode::kUnsupported, "[", name, "] has launches of several parameters");
    } else {
      std::deque<DeviceOp<Op>> ops;
      std::vector<decltype(launches_of(pack, ops[0].fields, ops[0].op))> all;
      for (int i = 0; i < sets; ++i) {
        DeviceOp<Op>& op = ops.emplace_back(pack, name, given);
        op.place();
        all.push_back(launches_of(pack, op.fields, op.op));
      }
      const std::function<void()> work = [&] {  // type-erased, so that the timing is instantiated only once
        for (const auto& one : all) start(pack, one);
      };
      const double seconds = time_on_device(pack, replays, tries, work);
      pack.take_started();
      nb::dict result;
      result["seconds"] = seconds / sets;
      result["launch"] = gpu::to_string(all[0].launches[0]);
      add_work(result, ops[0].fields, ops[0].op);
      return result;
    }
  });
}

nb::object read_memory(PythonPack& pack, Bytes x) {
  Call call(pack);
  const size_t n_blocks = size_t(gpu::read_blocks(pack.target()));
  uint32_t* sums = call.out<uint32_t>(n_blocks);
  run(pack, ReadMemory{.x = call.in(x), .bytes = x.size(), .sums = sums});
  return call.read(sums, n_blocks);
}

double read_bandwidth(PythonPack& pack, size_t bytes, int sets, int replays, int tries) {
  LB_CHECK(bytes >= 16 && sets >= 1 && replays >= 1 && tries >= 1, kInvalid,
           "bytes must be at least 16; sets, replays and tries at least 1");
  bytes = bytes / 16 * 16;
  const gpu::Buffer x = random_buffer(pack, sets * bytes, 88172645463325252ull);
  const gpu::Buffer sums(pack.device(), size_t(gpu::read_blocks(pack.target())) * sizeof(uint32_t));
  const double seconds = time_on_device(pack, replays, tries, [&] {
    for (int set = 0; set < sets; ++set)
      run(pack,
          ReadMemory{.x = x.data() + set * bytes, .bytes = bytes, .sums = reinterpret_cast<uint32_t*>(sums.data())});
  });
  pack.take_started();
  return double(x.size()) / seconds;
}

}  // namespace

void bind_gpu_ops(nb::module_& m) {
  m.def("run", &run_named, "pack"_a, "op"_a, "fields"_a,
        "Runs an op on its fields, by the names in src/cpp/ops/operands.h: a dict of what it writes. An output that is "
        "given the name of an input takes that input's memory; rounded rows are given as their bits, 8 or 16.");
  m.def("run_several", &run_several, "pack"_a, "op"_a, "fields"_a,
        "Runs an op of one row for several sequences, in one launch if the pack has a kernel for that: run() of each "
        "dict of fields, with a list of results.");
  m.def("time", &time_op, "pack"_a, "op"_a, "sets"_a = 1, "replays"_a = 20, "tries"_a = 5, "fields"_a,
        "Seconds of an op by the device's clock, over `sets` copies of its fields in turn, and its first launch. Of an "
        "attention also the bytes that have to move, and the flops of the slots that a chain sees.");
  m.def("read_memory", &read_memory, "pack"_a, "x"_a, "Sums of the 32-bit words that each block has read.");
  m.def("read_bandwidth", &read_bandwidth, "pack"_a, "bytes"_a = size_t(1) << 30, "sets"_a = 1, "replays"_a = 20,
        "tries"_a = 5, "Bytes a second of a kernel that only reads `bytes` a launch, from `sets` buffers in turn.");
  bind_gpu_delta(m);
  bind_gpu_sample(m);
  bind_gpu_products(m);
  bind_gpu_load(m);
  bind_gpu_megakernel(m);
}

}  // namespace lb::kernels
