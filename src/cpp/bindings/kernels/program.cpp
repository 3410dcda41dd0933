#include "bindings/kernels/program.h"

#include <algorithm>
#include <deque>
#include <span>

#include "gpu/attention/choose.h"
#include "gpu/choose_batched.h"
#include "gpu/delta_net/choose.h"
#include "gpu/draft/choose.h"
#include "gpu/experts/choose.h"
#include "gpu/gemm/choose.h"
#include "gpu/gemv/choose.h"
#include "gpu/sampling/choose.h"
#include "ops/operands.h"

namespace lb::kernels {
namespace {

// Checks that the page table has a slot for every row that an op appends, reads or moves.
template <class Op>
void check_slots(const Op& op, OpFields& fields) {
  if constexpr (requires { op.cache; }) {
    long rows = fields.largest("accepted", -1) + 1;
    if constexpr (requires { op.rows; }) rows = op.rows;
    const long slots = fields.largest("n_past", 0) + rows, capacity = fields.size("page_table") * kPageTokens;
    LB_CHECK(slots <= capacity, kInvalid, "the page table holds ", capacity, " slots, ", slots, " are needed");
  }
}

CpuStreamOptions scratch_of(const auto&) { return {}; }
CpuStreamOptions scratch_of(const Linear& op) {
  return {.shared_scratch_bytes = linear_shared_scratch(op.rows, op.n_in),
          .thread_scratch_bytes = linear_thread_scratch(op.n_in)};
}
CpuStreamOptions scratch_of(const MixExperts& op) {
  return {.shared_scratch_bytes = expert_shared_scratch(op.rows, op.k, op.dim, op.ffn),
          .thread_scratch_bytes = linear_thread_scratch(std::max(op.dim, op.ffn))};
}
CpuStreamOptions scratch_of(const Attention& op) {
  const int dim = op.cache.head_dim, n_kv_heads = op.cache.n_kv_heads;
  LB_CHECK(dim % 8 == 0 && n_kv_heads > 0 && op.n_heads % n_kv_heads == 0, kInvalid, "[attention] ", op.n_heads,
           " heads of ", dim, " do not fit a cache of ", n_kv_heads, " heads");
  LB_CHECK(op.rows <= kMaxTree || !op.tree.ancestors, kInvalid, "a tree has at most ", kMaxTree, " rows, got ",
           op.rows);
  return {.shared_scratch_bytes = attention_shared_scratch(op.rows, op.n_heads, dim, *op.n_past + op.rows),
          .thread_scratch_bytes = attention_thread_scratch(key_dim_of(op.cache), op.n_heads, n_kv_heads)};
}
CpuStreamOptions scratch_of(const KeyScores& op) {
  const int n_kv_heads = op.cache.n_kv_heads;
  LB_CHECK(n_kv_heads > 0 && op.n_heads % n_kv_heads == 0 && op.rows <= kMaxKeyScoreRows, kInvalid, "[key_scores] ",
           op.rows, " rows of ", op.n_heads, " heads do not fit a cache of ", n_kv_heads, " heads");
  return {.shared_scratch_bytes = 0,
          .thread_scratch_bytes = key_scores_thread_scratch(op.rows, op.n_heads, n_kv_heads, op.cache.head_dim)};
}
CpuStreamOptions scratch_of(const SelectBlocks& op) {
  return {.shared_scratch_bytes = 0, .thread_scratch_bytes = select_blocks_thread_scratch(op.max_blocks)};
}
CpuStreamOptions scratch_of(const GatedDelta& op) {
  LB_CHECK(op.n_k_heads > 0 && op.n_v_heads % op.n_k_heads == 0, kInvalid,
           "value heads must be a multiple of key heads, got ", op.n_v_heads, " and ", op.n_k_heads);
  return {.shared_scratch_bytes = 0, .thread_scratch_bytes = delta_thread_scratch(op.dk, op.dv)};
}
CpuStreamOptions scratch_of(const DeltaNet& op) { return scratch_of(op.delta); }

// Scratch of n ops in one call. capacity: tokens of the KV cache.
size_t device_scratch(const auto&, size_t, int, const gpu::Target&) { return 0; }
size_t device_scratch(const Attention& op, size_t n, int capacity, const gpu::Target& target) {
  const auto& [rows, heads, dim] = std::tuple(op.rows, op.n_heads, op.cache.head_dim);
  if (rows > 1 && !op.by_row) return gpu::attention_scratch_bytes(rows, heads, dim, capacity, target);
  const size_t row = gpu::attention_row_scratch_bytes(heads, op.cache.n_kv_heads, dim, capacity, target);
  return n > 1 || rows > 1 ? gpu::kMaxBatched * gpu::aligned_scratch(row) : row;
}
size_t device_scratch(const MixExperts& op, size_t, int, const gpu::Target&) {
  return gpu::expert_scratch_bytes(op.rows, op.k, op.dim, op.ffn);
}
size_t device_scratch(const GatedDelta& op, size_t, int, const gpu::Target& target) {
  return gpu::gated_delta_scratch_bytes(op, target);
}
size_t device_scratch(const DeltaNet& op, size_t n, int capacity, const gpu::Target& target) {
  return device_scratch(op.delta, n, capacity, target);
}
size_t device_scratch(const TopTokens& op, size_t, int, const gpu::Target&) {
  return gpu::top_tokens_scratch_bytes(op.rows);
}
size_t device_scratch(const SelectCandidates& op, size_t, int, const gpu::Target&) {
  return gpu::select_scratch_bytes(op.rows, op.k);
}
// A group's rounded x, and its own scratch.
size_t device_scratch(const LinearGroup& group, const gpu::Target& target) {
  const Linear& first = group.products[0];
  const bool is_gemm = first.rows > 1 && gpu::has_gemm(group, target);
  return gpu::gemm_scratch_at(first, 16) +
         (is_gemm ? std::max(gpu::gemm_scratch_bytes(group, target), gpu::skinny_scratch(group, target).partials) : 0);
}

}  // namespace

struct Program::Call {
  virtual ~Call() = default;
  virtual void run(Stream& stream) const = 0;

  // Products of the x that the first one has.
  void set_group(const std::vector<Linear>& products) {
    LB_CHECK(products.size() <= kMaxProducts, kInvalid, "a group has 1 to ", kMaxProducts, " weights, got ",
             products.size());
    for (const Linear& product : products) {
      const Linear& first = products[0];
      LB_CHECK(product.rows == first.rows && product.n_in == first.n_in, kInvalid,
               "the products of a group have one x");
      group.products[group.n] = product;
      group.products[group.n++].x = first.x;
    }
  }

  std::deque<OpFields> fields, reader_fields;
  LinearGroup group{};  // of the op itself, or of its readers
};

template <class Op>
struct Program::CallOf final : Call {
  void run(Stream& stream) const override {
    if constexpr (std::is_same_v<Op, Linear>)
      stream.run(group);
    else if (group.n > 0)
      stream.run_fused(ops[0], group);
    else if (ops.size() == 1)
      stream.run(ops[0]);
    else
      stream.run(std::span<const Op>(ops));
  }

  std::vector<Op> ops;
};

template <class Op>
void place(OpMemory& memory, const std::string& name, const std::vector<nb::dict>& given, const OpFields::Links& links,
           std::vector<Op>& ops, std::deque<OpFields>& fields) {
  ops.resize(given.size());  // the fields point into it
  for (size_t i = 0; i < given.size(); ++i) {
    OpFields& own = fields.emplace_back(memory, name, given[i], links);
    operands(ops[i], own);
    own.place();
    check_slots(ops[i], own);
  }
}

Program::Program(OpMemory& memory, const std::vector<OpCall>& calls, const gpu::Target* target) {
  const OpFields::Links links = [this](const nb::tuple& link) { return linked(link); };
  for (const auto& [name, given, readers] : calls)
    with_op(name, [&]<class Op>(Op) {
      LB_CHECK(!given.empty(), kInvalid, "[", name, "] has no fields");
      LB_CHECK(readers.empty() || given.size() == 1, kInvalid, "[", name, "] with readers is one op");
      auto owned = std::make_unique<CallOf<Op>>();
      CallOf<Op>& call = *owned;
      calls_.push_back(std::move(owned));
      place(memory, name, given, links, call.ops, call.fields);
      std::vector<Linear> products;
      place(memory, "linear", readers, links, products, call.reader_fields);
      if constexpr (std::is_same_v<Op, Linear>) products = call.ops;
      call.set_group(products);
      plan(call, target);
      return true;
    });
}

Program::~Program() = default;

template <class Op>
void Program::plan(CallOf<Op>& call, const gpu::Target* target) {
  if constexpr (requires(Op op) { op.cache; })
    for (OpFields& fields : call.fields) capacity_ = std::max(capacity_, int(fields.size("page_table")) * kPageTokens);
  if (target != nullptr) {
    scratch_bytes_ += device_scratch(call.ops[0], call.ops.size(), capacity_, *target);
    if (call.group.n > 0) scratch_bytes_ += device_scratch(call.group, *target);
    return;
  }
  const auto grow = [&](const CpuStreamOptions& own) {
    cpu_.shared_scratch_bytes = std::max(cpu_.shared_scratch_bytes, own.shared_scratch_bytes);
    cpu_.thread_scratch_bytes = std::max(cpu_.thread_scratch_bytes, own.thread_scratch_bytes);
  };
  for (const Op& op : call.ops) grow(scratch_of(op));
  if (call.group.n > 0) grow(scratch_of(call.group.products[0]));
}

// A link: (call, op of the call, its field).
std::byte* Program::linked(const nb::tuple& link) const {
  LB_CHECK(link.size() == 3, kInvalid, "a link is (call, op, field), got ", link.size(), " values");
  const auto call = nb::cast<size_t>(link[0]), op = nb::cast<size_t>(link[1]);
  LB_CHECK(call < calls_.size() && op < calls_[call]->fields.size(), kInvalid, "call ", call, " has no op ", op,
           " before this one");
  return calls_[call]->fields[op].address(nb::cast<std::string>(link[2]));
}

void Program::run(Stream& stream) const {
  for (const auto& call : calls_) call->run(stream);
}

std::vector<OpResults> Program::results() {
  const auto read = [](std::deque<OpFields>& all) {
    std::vector<nb::dict> results;
    for (OpFields& fields : all) results.push_back(fields.results());
    return results;
  };
  std::vector<OpResults> all;
  for (const auto& call : calls_) all.emplace_back(read(call->fields), read(call->reader_fields));
  return all;
}

bool Program::counts_in_scratch() const {
  const Call* call = calls_[0].get();
  return calls_.size() == 1 && call->group.n == 0 &&
         (dynamic_cast<const CallOf<Attention>*>(call) || dynamic_cast<const CallOf<TopTokens>*>(call));
}

const LinearGroup& Program::group() const { return calls_.at(0)->group; }

void Program::add_work(nb::dict& result) const {
  if (calls_[0]->group.n > 0) result["bytes"] = gpu::bytes_of(calls_[0]->group);
  if (const auto* call = dynamic_cast<const CallOf<Attention>*>(calls_[0].get())) {
    const int n_past = int(calls_[0]->fields[0].largest("n_past", 0));
    result["bytes"] = gpu::bytes_of(call->ops[0], n_past);
    result["flops"] = gpu::flops_of(call->ops[0], n_past);
  }
}

}  // namespace lb::kernels
