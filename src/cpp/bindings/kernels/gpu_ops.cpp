// Any single op on the device of a pack, and its read bandwidth.
#include "bindings/kernels/bindings.h"
#include "bindings/kernels/gpu_call.h"
#include "bindings/kernels/gpu_timing.h"
#include "device/graph.h"
#include "gpu/choose_several.h"
#include "quant/repack.h"

using namespace nanobind::literals;

namespace lb::kernels {
namespace {

void start(PythonPack& pack, OpFields&, const auto& op, const RoundedRows&) { run(pack, op); }

void start(PythonPack& pack, OpFields& fields, const Linear& op, const RoundedRows&) {
  run(pack, LinearGroup{{op}, 1}, static_cast<std::byte*>(fields.scratch(rounded_bytes(op.rows, op.n_in, true))));
}

// Twice into the same scratch, as a graph replays it. The cache's capacity is the page table's.
void start(PythonPack& pack, OpFields& fields, const Attention& op, const RoundedRows& rounded) {
  const int capacity = int(fields.size("page_table")) * kPageTokens, dim = op.cache.head_dim;
  void* scratch = fields.scratch(gpu::attention_scratch_bytes(op.rows, op.n_heads, dim, capacity, pack.target()));
  gpu::AttentionLaunches launches = gpu::choose(op, capacity, scratch, pack.target());
  LB_CHECK(!rounded.high || (launches.n == 2 && gpu::can_round(op)), kInvalid,
           "only merged splits of whole blocks are rounded");
  launches.params.rounded = rounded;
  for (int i = 0; i < 2; ++i)
    for (int j = 0; j < launches.n; ++j) pack.run(launches.launches[j], launches.params);
}

void start(PythonPack& pack, OpFields& fields, const GatedDelta& op, const RoundedRows&) {
  void* scratch = fields.scratch(gpu::gated_delta_scratch_bytes(op, pack.target()));
  const gpu::DeltaLaunches launches = gpu::choose(op, static_cast<float*>(scratch), pack.target());
  for (int i = 0; i < launches.n; ++i) pack.run(launches.launches[i], launches.params);
}

void start(PythonPack&, OpFields&, const DeltaNet&, const RoundedRows&) {
  fail(ErrorCode::kUnsupported, "[delta_net] has no launch of its own");
}

void start(PythonPack& pack, OpFields&, const KvMove& op, const RoundedRows&) {
  const gpu::MoveLaunch move = gpu::choose(std::span(&op, 1), pack.target());
  pack.run(move.launch, move.params);
}

void start(PythonPack& pack, OpFields&, const KeyScores& op, const RoundedRows&) {
  for (const gpu::Launch& launch : gpu::choose(op, pack.target())) pack.run(launch, op);
}

// Both launches twice into the same scratch, as a graph replays them.
void start(PythonPack& pack, OpFields& fields, const TopTokens& op, const RoundedRows&) {
  void* scratch = fields.scratch(gpu::top_tokens_scratch_bytes(op.rows));
  const gpu::TopTokensLaunches top = gpu::choose(op, scratch, pack.target());
  for (int i = 0; i < 2; ++i)
    for (const gpu::Launch& launch : top.launches) pack.run(launch, top.params);
}

void start(PythonPack& pack, OpFields& fields, const SelectCandidates& op, const RoundedRows&) {
  void* scratch = fields.scratch(gpu::select_scratch_bytes(op.rows, op.k));
  const gpu::SelectLaunches select = gpu::choose(op, static_cast<float*>(scratch), pack.target());
  for (const gpu::Launch& launch : select.launches) pack.run(launch, select.params);
}

nb::dict run_op(PythonPack& pack, const std::string& name, const nb::kwargs& given) {
  return with_op(name, [&](auto op) {
    DeviceMemory memory(pack);
    OpFields fields(memory, name, given);
    operands(op, fields);
    RoundedRows merged{};
    if constexpr (std::is_same_v<decltype(op), Attention>)
      fields.rounded("rounded", merged, op.rows, op.n_heads * op.cache.head_dim);
    fields.place();
    check_slots(op, fields);
    start(pack, fields, op, merged);
    return fields.results();
  });
}

// The launches of one of several sequences, each with memory of its own.
template <class Params>
struct Launches {
  std::vector<gpu::Launch> launches;
  Params params;
};
Launches<AttentionPrepare> launches_of(PythonPack& pack, OpFields&, const AttentionPrepare& op) {
  return {{gpu::choose(op, pack.target())}, op};
}
Launches<DeltaInputs> launches_of(PythonPack& pack, OpFields&, const DeltaInputs& op) {
  return {{gpu::choose(op, pack.target())}, op};
}
Launches<CopyRows> launches_of(PythonPack& pack, OpFields&, const CopyRows& op) {
  return {{gpu::choose(op, pack.target())}, op};
}
Launches<GatedDelta> launches_of(PythonPack& pack, OpFields&, const GatedDelta& op) {
  return {{gpu::choose(op, nullptr, pack.target()).launches[0]}, op};
}
Launches<gpu::AttentionSplits> launches_of(PythonPack& pack, OpFields& fields, const Attention& op) {
  const KvLayer& cache = op.cache;
  const int capacity = int(fields.size("page_table")) * kPageTokens;
  void* scratch = fields.scratch(
      gpu::attention_row_scratch_bytes(op.n_heads, cache.n_kv_heads, cache.head_dim, capacity, pack.target()));
  const gpu::AttentionLaunches all = gpu::choose(op, capacity, scratch, pack.target());
  return {{all.launches, all.launches + all.n}, all.params};
}

template <class Op>
std::vector<nb::dict> run_each(PythonPack& pack, const std::string& name, const std::vector<nb::dict>& given) {
  LB_CHECK(!given.empty() && given.size() <= gpu::kMaxSeveral, kInvalid, "1 to ", gpu::kMaxSeveral,
           " sequences share a launch, got ", given.size());
  std::deque<DeviceMemory> memory;
  std::deque<OpFields> fields;
  std::deque<Op> ops;
  std::vector<gpu::Launch> launches;
  gpu::Several<decltype(launches_of(pack, fields[0], ops[0]).params)> params;
  for (size_t i = 0; i < given.size(); ++i) {
    OpFields& own = fields.emplace_back(memory.emplace_back(pack), name, nb::borrow<nb::kwargs>(given[i]));
    operands(ops.emplace_back(), own);
    own.place();
    check_slots(ops[i], own);
    const auto one = launches_of(pack, own, ops[i]);
    params.of[i] = one.params;
    if (i == 0) launches = one.launches;
  }
  for (const gpu::Launch& one : launches) {
    if (const auto launch = gpu::for_several(one, int(given.size()), pack.target())) {
      pack.run(*launch, params);
      continue;
    }
    for (size_t i = 0; i < given.size(); ++i) pack.run(one, params.of[i]);  // as the engine does
  }
  std::vector<nb::dict> results;
  for (OpFields& own : fields) results.push_back(own.results());
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
  m.def("run", &run_op, "pack"_a, "op"_a, "fields"_a,
        "Runs an op on its fields, by the names in src/cpp/ops/operands.h: a dict of what it writes. An output that is "
        "given the name of an input takes that input's memory; rounded rows are given as their bits, 8 or 16.");
  m.def("run_several", &run_several, "pack"_a, "op"_a, "fields"_a,
        "Runs an op of one row for several sequences, in one launch if the pack has a kernel for that: run() of each "
        "dict "
        "of fields, with a list of results.");
  m.def("read_memory", &read_memory, "pack"_a, "x"_a, "Sums of the 32-bit words that each block has read.");
  m.def("read_bandwidth", &read_bandwidth, "pack"_a, "bytes"_a = size_t(1) << 30, "sets"_a = 1, "replays"_a = 20,
        "tries"_a = 5, "Bytes a second of a kernel that only reads `bytes` a launch, from `sets` buffers in turn.");
  bind_gpu_attention(m);
  bind_gpu_delta(m);
  bind_gpu_sample(m);
  bind_gpu_products(m);
  bind_gpu_load(m);
  bind_gpu_megakernel(m);
}

}  // namespace lb::kernels
