// Runs single ops on numpy arrays, on the CPU.
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "bindings/kernels/bindings.h"
#include "bindings/kernels/op_fields.h"
#include "bindings/names.h"
#include "cpu/cpu_stream.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lb::kernels {
namespace {

// Host memory without guards, because a sanitizer detects an access past the end of an operand.
class HostMemory final : public OpMemory {
 public:
  std::byte* reserve(size_t bytes) override {
    std::byte* data = memory_.emplace_back(new std::byte[bytes]).get();
    std::memset(data, 0xff, bytes);
    return data;
  }
  void upload(std::byte* to, const void* from, size_t bytes) override {
    std::copy_n(static_cast<const std::byte*>(from), bytes, to);
  }
  void download(void* to, const std::byte* from, size_t bytes) override {
    std::copy_n(from, bytes, static_cast<std::byte*>(to));
  }
  const void* weights(const AnyArray& blocks, DType, int, int) override { return blocks.data(); }
  size_t guard_bytes() const override { return 0; }

 private:
  std::vector<std::unique_ptr<std::byte[]>> memory_;
};

CpuStreamOptions scratch_of(const auto&) { return {}; }
CpuStreamOptions scratch_of(const Linear& op) {
  return {.shared_scratch_bytes = linear_shared_scratch(op.rows, op.n_in),
          .thread_scratch_bytes = linear_thread_scratch(op.n_in)};
}
CpuStreamOptions scratch_of(const Attention& op) {
  const int dim = op.cache.head_dim, n_kv_heads = op.cache.n_kv_heads;
  LB_CHECK(dim % 8 == 0 && n_kv_heads > 0 && op.n_heads % n_kv_heads == 0, kInvalid, "[attention] ", op.n_heads,
           " heads of ", dim, " do not fit a cache of ", n_kv_heads, " heads");
  LB_CHECK(op.rows <= kMaxTree || !op.tree.ancestors, kInvalid, "a tree has at most ", kMaxTree, " rows, got ",
           op.rows);
  return {.shared_scratch_bytes = attention_shared_scratch(op.rows, op.n_heads, dim, *op.n_past + op.rows),
          .thread_scratch_bytes = attention_thread_scratch(dim, op.n_heads, n_kv_heads)};
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

nb::dict run_op(const std::string& name, int threads, const std::string& isa, const nb::kwargs& given) {
  return with_op(name, [&](auto op) {
    HostMemory memory;
    OpFields fields(memory, name, given);
    operands(op, fields);
    fields.place();
    check_slots(op, fields);
    CpuStreamOptions options = scratch_of(op);
    options.n_threads = threads;
    options.isa = isa_named(isa);
    CpuStream stream(options);
    lb::run(op, stream);
    return fields.results();
  });
}

}  // namespace

void bind_ops(nb::module_& m) {
  m.def("run", &run_op, "op"_a, "threads"_a = 1, "isa"_a = "auto", "fields"_a,
        "Runs an op on its fields, by the names in src/cpp/ops/operands.h: a dict of what it writes. An output that is "
        "given the name of an input takes that input's memory.");
  bind_ops_linear(m);
  bind_ops_rows(m);
}

}  // namespace lb::kernels
