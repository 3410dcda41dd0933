// The fields of every op by name: scalars, then pointers with their access and shape. Everything derived from the
// fields is written once, as a visitor: bytes, alignment, address ranges, the test bindings. Host code only; kernels
// include the op structs alone.
//
// A visitor has
//   scalar(name, field)                               a number, type or order
//   stride(name, field)                               values between rows or heads; 0 where the operand is null
//   in, out, in_out(name, pointer, shape, strides)    strides in values; none: contiguous
//   optional_in, optional_in_out(name, pointer, shape, strides)    may be null
//   indices, optional_indices(name, pointer, shape, first, end)    integers in [first, end)
//   weights(name, pointer, type, n_out, n_in)         blocks on the CPU, planes on devices
//   pages(name, pointer, type, n_kv_heads, head_dim, access)       any number of pages, of a KvType
//   page_table(name, pointer)                         any number of entries
//   rounded(name, rows_out, rows, n_in)               may be null
//   inside(pointer, name, offset)                     points into another operand, `offset` values from its start; null
//                                                     if that operand is null
//
// Not described here: LinearGroup and the sampler, which have tables of operands; ReadMemory, whose output has one
// element per block of its grid; AllReduce and AllGather, whose mailboxes are in the memory of several devices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string_view>
#include <type_traits>

#include "base/dtype.h"
#include "base/error.h"
#include "ops/ops.h"

namespace lb {

// The size of an axis, or a stride. Re-reads its field at each use, so that a visitor can set the field from an array
// first. Valid only during the visitor's call.
struct Axis {
  const void* field;
  long (*read)(const void*);
  template <class T>
  Axis(const T& value) : field(&value), read([](const void* p) { return long(*static_cast<const T*>(p)); }) {}
  long size() const { return read(field); }
};
using Axes = std::initializer_list<Axis>;
inline constexpr int kAnySize = -1;  // an axis whose size no field has

enum class Access { kIn, kOut, kInOut };

template <class Visit>
void operands(RmsNorm& op, Visit&& visit) {
  visit.scalar("rows", op.rows);
  visit.scalar("heads", op.heads);
  visit.scalar("dim", op.dim);
  visit.stride("row_stride", op.row_stride);
  visit.stride("head_stride", op.head_stride);
  visit.scalar("eps", op.eps);
  visit.in("x", op.x, {op.rows, op.heads, op.dim}, {op.row_stride, op.head_stride, 1});
  visit.in("w", op.w, {op.dim});
  visit.out("y", op.y, {op.rows, op.heads, op.dim});
  visit.rounded("rounded", op.rounded, op.rows, op.heads * op.dim);
}

template <class Visit>
void operands(GatedRmsNorm& op, Visit&& visit) {
  visit.scalar("rows", op.rows);
  visit.scalar("heads", op.heads);
  visit.scalar("dim", op.dim);
  visit.scalar("eps", op.eps);
  visit.in("o", op.o, {op.rows, op.heads, op.dim});
  visit.in("z", op.z, {op.rows, op.heads, op.dim});
  visit.in("w", op.w, {op.dim});
  visit.out("y", op.y, {op.rows, op.heads, op.dim});
  visit.rounded("rounded", op.rounded, op.rows, op.heads * op.dim);
}

template <class Visit>
void operands(SwiGlu& op, Visit&& visit) {
  visit.scalar("rows", op.rows);
  visit.scalar("dim", op.dim);
  visit.in("gate", op.gate, {op.rows, op.dim});
  visit.in("up", op.up, {op.rows, op.dim});
  visit.out("y", op.y, {op.rows, op.dim});
  visit.rounded("rounded", op.rounded, op.rows, op.dim);
}

template <class Visit>
void operands(GeGlu& op, Visit&& visit) {
  visit.scalar("rows", op.rows);
  visit.scalar("dim", op.dim);
  visit.stride("up_stride", op.up_stride);
  visit.in("gate", op.gate, {op.rows, op.dim});
  visit.in("up", op.up, {op.rows, op.dim}, {op.up_stride, 1});
  visit.out("y", op.y, {op.rows, op.dim});
  visit.rounded("rounded", op.rounded, op.rows, op.dim);
}

template <class Visit>
void operands(SoftCap& op, Visit&& visit) {
  visit.scalar("rows", op.rows);
  visit.scalar("dim", op.dim);
  visit.scalar("cap", op.cap);
  visit.in_out("x", op.x, {op.rows, op.dim});
}

template <class Visit>
void operands(AddNorm& op, Visit&& visit) {
  visit.scalar("rows", op.rows);
  visit.scalar("dim", op.dim);
  visit.scalar("eps", op.eps);
  visit.scalar("scale", op.scale);
  visit.in("x", op.x, {op.rows, op.dim});
  visit.in_out("z", op.z, {op.rows, op.dim});
  visit.in("w", op.w, {op.dim});
  visit.out("y", op.y, {op.rows, op.dim});
}

template <class Visit>
void operands(Linear& op, Visit&& visit) {
  visit.scalar("type", op.type);
  visit.scalar("rows", op.rows);
  visit.scalar("n_in", op.n_in);
  visit.scalar("n_out", op.n_out);
  visit.scalar("activations", op.activations);
  visit.weights("w", op.w, op.type, op.n_out, op.n_in);
  visit.in("x", op.x, {op.rows, op.n_in});
  visit.optional_in("add", op.add, {op.rows, op.n_out});
  visit.out("y", op.y, {op.rows, op.n_out});
}

template <class Visit>
void operands(RouteExperts& op, Visit&& visit) {
  visit.scalar("rows", op.rows);
  visit.scalar("n_experts", op.n_experts);
  visit.scalar("k", op.k);
  visit.scalar("is_normalized", op.is_normalized);
  visit.in("logits", op.logits, {op.rows, op.n_experts});
  visit.optional_in("bias", op.bias, {op.n_experts});
  visit.optional_in("scale", op.scale, {op.n_experts});
  visit.out("experts", op.experts, {op.rows, op.k});
  visit.out("weights", op.weights, {op.rows, op.k});
}

template <class Visit>
void operands(MixExperts& op, Visit&& visit) {
  visit.scalar("rows", op.rows);
  visit.scalar("k", op.k);
  visit.scalar("n_experts", op.n_experts);
  visit.scalar("dim", op.dim);
  visit.scalar("ffn", op.ffn);
  visit.scalar("limit", op.limit);
  visit.scalar("is_gelu", op.is_gelu);
  visit.scalar("activations", op.activations);
  visit.scalar("gate_type", op.gate.type);
  visit.scalar("gate_rows", op.gate.expert_rows);
  visit.scalar("gate_first", op.gate.first_row);
  visit.scalar("up_type", op.up.type);
  visit.scalar("up_rows", op.up.expert_rows);
  visit.scalar("up_first", op.up.first_row);
  visit.scalar("down_type", op.down.type);
  visit.scalar("down_rows", op.down.expert_rows);
  visit.scalar("down_first", op.down.first_row);
  visit.indices("experts", op.experts, {op.rows, op.k}, 0, op.n_experts);
  int gate_rows = op.n_experts * op.gate.expert_rows, up_rows = op.n_experts * op.up.expert_rows;
  int down_rows = op.n_experts * op.down.expert_rows;
  visit.weights("gate", op.gate.w, op.gate.type, gate_rows, op.dim);
  visit.weights("up", op.up.w, op.up.type, up_rows, op.dim);
  visit.weights("down", op.down.w, op.down.type, down_rows, op.ffn);
  visit.optional_in("gate_bias", op.gate.bias, {op.n_experts, op.ffn});
  visit.optional_in("up_bias", op.up.bias, {op.n_experts, op.ffn});
  visit.optional_in("down_bias", op.down.bias, {op.n_experts, op.dim});
  visit.in("x", op.x, {op.rows, op.dim});
  visit.in("weights", op.weights, {op.rows, op.k});
  visit.optional_in("shared", op.shared, {op.rows, op.dim});
  visit.optional_in("shared_gate", op.shared_gate, {op.rows});
  visit.optional_in("add", op.add, {op.rows, op.dim});
  visit.out("y", op.y, {op.rows, op.dim});
}

template <class Visit>
void operands(AddBias& op, Visit&& visit) {
  visit.scalar("rows", op.rows);
  visit.scalar("dim", op.dim);
  visit.in("bias", op.bias, {op.dim});
  visit.in_out("y", op.y, {op.rows, op.dim});
}

template <class Visit>
void operands(RoundRows& op, Visit&& visit) {
  visit.scalar("rows", op.rows);
  visit.scalar("n_in", op.n_in);
  visit.in("x", op.x, {op.rows, op.n_in});
  visit.rounded("y", op.y, op.rows, op.n_in);
}

template <class Visit>
void operands(RopeTable& op, Visit&& visit) {
  visit.scalar("rows", op.rows);
  visit.scalar("n_pairs", op.n_pairs);
  visit.scalar("scale", op.scale);
  visit.stride("period", op.period);
  visit.stride("n_scales", op.n_scales);
  visit.in("pos", op.pos, {3, op.rows});
  visit.indices("axis", op.axis, {op.n_pairs}, 0, 3);
  visit.in("inv_freq", op.inv_freq, {op.n_pairs});
  visit.optional_in("row_scales", op.row_scales, {op.n_scales});
  visit.out("cos", op.cos, {op.rows, op.n_pairs});
  visit.out("sin", op.sin, {op.rows, op.n_pairs});
}

template <class Visit>
void operands(Rope& op, Visit&& visit) {
  visit.scalar("rows", op.rows);
  visit.scalar("heads", op.heads);
  visit.scalar("dim", op.dim);
  visit.scalar("n_pairs", op.n_pairs);
  visit.scalar("pairs", op.pairs);
  visit.in_out("x", op.x, {op.rows, op.heads, op.dim});
  visit.in("cos", op.cos, {op.rows, op.n_pairs});
  visit.in("sin", op.sin, {op.rows, op.n_pairs});
}

template <class Visit>
void operands(ReadPatches& op, Visit&& visit) {
  visit.scalar("first", op.first);
  visit.scalar("rows", op.rows);
  visit.scalar("height", op.height);
  visit.scalar("columns", op.columns);
  visit.scalar("patch", op.patch);
  visit.scalar("merge", op.merge);
  visit.in("rgb", op.rgb, {op.height * op.patch, op.columns * op.patch, 3});
  visit.in("level", op.level, {3, 256});
  visit.out("y", op.y, {op.rows, 3 * op.patch * op.patch});
}

template <class Visit>
void operands(AddPositions& op, Visit&& visit) {
  visit.scalar("first", op.first);
  visit.scalar("rows", op.rows);
  visit.scalar("dim", op.dim);
  visit.scalar("height", op.height);
  visit.scalar("columns", op.columns);
  visit.scalar("side", op.side);
  visit.scalar("merge", op.merge);
  visit.in("table", op.table, {op.side, op.side, op.dim});
  visit.in_out("y", op.y, {op.rows, op.dim});
}

template <class Visit>
void operands(AddAxisPositions& op, Visit&& visit) {
  static constexpr int kAxes = 2;
  visit.scalar("first", op.first);
  visit.scalar("rows", op.rows);
  visit.scalar("dim", op.dim);
  visit.scalar("columns", op.columns);
  visit.scalar("side", op.side);
  visit.scalar("merge", op.merge);
  visit.in("table", op.table, {kAxes, op.side, op.dim});
  visit.in_out("y", op.y, {op.rows, op.dim});
}

template <class Visit>
void operands(PoolPatches& op, Visit&& visit) {
  visit.scalar("rows", op.rows);
  visit.scalar("dim", op.dim);
  visit.scalar("block", op.block);
  visit.scalar("factor", op.factor);
  visit.in("x", op.x, {op.rows, op.block, op.dim});
  visit.optional_in("bias", op.bias, {op.dim});
  visit.optional_in("scale", op.scale, {op.dim});
  visit.out("y", op.y, {op.rows, op.dim});
}

template <class Visit>
void operands(Clamp& op, Visit&& visit) {
  visit.scalar("rows", op.rows);
  visit.scalar("dim", op.dim);
  visit.scalar("lowest", op.lowest);
  visit.scalar("highest", op.highest);
  visit.in("x", op.x, {op.rows, op.dim});
  visit.out("y", op.y, {op.rows, op.dim});
}

template <class Visit>
void operands(LayerNorm& op, Visit&& visit) {
  visit.scalar("rows", op.rows);
  visit.scalar("dim", op.dim);
  visit.scalar("eps", op.eps);
  visit.in("x", op.x, {op.rows, op.dim});
  visit.in("w", op.w, {op.dim});
  visit.in("b", op.b, {op.dim});
  visit.out("y", op.y, {op.rows, op.dim});
}

template <class Visit>
void operands(BiasGelu& op, Visit&& visit) {
  visit.scalar("rows", op.rows);
  visit.scalar("dim", op.dim);
  visit.scalar("is_exact", op.is_exact);
  visit.in("bias", op.bias, {op.dim});
  visit.in_out("y", op.y, {op.rows, op.dim});
}

template <class Visit>
void operands(SplitHeads& op, Visit&& visit) {
  visit.scalar("rows", op.rows);
  visit.scalar("heads", op.heads);
  visit.scalar("dim", op.dim);
  visit.scalar("padded", op.padded);
  visit.scalar("first", op.first);
  visit.scalar("type", op.type);
  visit.stride("row_stride", op.row_stride);
  visit.stride("part_stride", op.part_stride);
  visit.scalar("is_by_axis", op.is_by_axis);
  visit.in("x", op.x, {op.rows, 3, op.heads, op.dim}, {op.row_stride, op.part_stride, op.dim, 1});
  visit.optional_in("bias", op.bias, {3, op.heads, op.dim});
  visit.in("cos", op.cos, {op.rows, op.dim / 2});
  visit.in("sin", op.sin, {op.rows, op.dim / 2});
  visit.out("q", op.q, {op.heads, op.rows, op.padded});
  visit.pages("k_pages", op.k, op.type, op.heads, op.padded, Access::kInOut);
  visit.pages("v_pages", op.v, op.type, op.heads, op.padded, Access::kInOut);
}

template <class Visit>
void operands(MergeHeads& op, Visit&& visit) {
  visit.scalar("rows", op.rows);
  visit.scalar("heads", op.heads);
  visit.scalar("dim", op.dim);
  visit.scalar("padded", op.padded);
  visit.in("x", op.x, {op.heads, op.rows, op.padded});
  visit.out("y", op.y, {op.rows, op.heads, op.dim});
}

template <class Visit>
void operands(Embed& op, Visit&& visit) {
  visit.scalar("type", op.type);
  visit.scalar("rows", op.rows);
  visit.scalar("dim", op.dim);
  visit.scalar("vocab", op.vocab);
  visit.scalar("scale", op.scale);
  visit.weights("table", op.table, op.type, op.vocab, op.dim);
  visit.indices("ids", op.ids, {op.rows}, 0, op.vocab);
  visit.out("y", op.y, {op.rows, op.dim});
}

template <class Visit>
void operands(Accepted& accepted, Visit&& visit) {
  visit.optional_indices("accepted", accepted.path, {kAnySize}, 0, kMaxTree);
  visit.optional_indices("n_accepted", accepted.n, {1}, 0, kMaxTree + 1);
}

template <class Visit>
void operands(Tree& tree, Visit&& visit, const int& rows) {
  visit.optional_indices("parent", tree.parent, {rows}, -1, rows);
  visit.optional_in("ancestors", tree.ancestors, {rows});
}

// access: how the op accesses the pages.
template <class Visit>
void operands(KvLayer& cache, Visit&& visit, Access access) {
  visit.scalar("k_type", cache.k_type);
  visit.scalar("v_type", cache.v_type);
  visit.scalar("n_kv_heads", cache.n_kv_heads);
  visit.scalar("head_dim", cache.head_dim);
  visit.scalar("key_tail", cache.key_tail);
  visit.pages("k_pages", cache.k, cache.k_type, cache.n_kv_heads, key_dim_of(cache), access);
  if (cache.key_tail == 0) visit.pages("v_pages", cache.v, cache.v_type, cache.n_kv_heads, cache.head_dim, access);
  visit.page_table("page_table", cache.page_table);
}

template <class Visit>
void operands(KvAppend& op, Visit&& visit) {
  visit.scalar("rows", op.rows);
  operands(op.cache, visit, Access::kInOut);
  visit.in("n_past", op.n_past, {1});
  visit.in("k", op.k, {op.rows, op.cache.n_kv_heads, key_dim_of(op.cache)});
  if (op.cache.key_tail == 0) visit.in("v", op.v, {op.rows, op.cache.n_kv_heads, op.cache.head_dim});
}

template <class Visit>
void operands(KvMove& op, Visit&& visit) {
  operands(op.cache, visit, Access::kInOut);
  visit.in("n_past", op.n_past, {1});
  operands(op.accepted, visit);
}

template <class Visit>
void operands(AttentionPrepare& op, Visit&& visit) {
  visit.scalar("rows", op.rows);
  visit.scalar("n_heads", op.n_heads);
  visit.scalar("n_pairs", op.n_pairs);
  visit.scalar("n_tail_pairs", op.n_tail_pairs);
  visit.stride("u_row_stride", op.u_row_stride);
  visit.stride("u_head_stride", op.u_head_stride);
  visit.scalar("eps", op.eps);
  visit.scalar("pairs", op.pairs);
  operands(op.cache, visit, Access::kInOut);
  visit.in("n_past", op.n_past, {1});
  visit.in("u", op.u, {op.rows, op.n_heads, op.cache.head_dim}, {op.u_row_stride, op.u_head_stride, 1});
  visit.optional_in_out("k", op.k, {op.rows, op.cache.n_kv_heads, op.cache.head_dim});
  visit.optional_in_out("v", op.v, {op.rows, op.cache.n_kv_heads, key_dim_of(op.cache)});
  visit.optional_in("q_norm", op.q_norm, {op.cache.head_dim});
  visit.optional_in("k_norm", op.k_norm, {op.cache.head_dim});
  visit.optional_in("q_bias", op.q_bias, {op.n_heads, op.cache.head_dim});
  visit.optional_in("k_bias", op.k_bias, {op.cache.n_kv_heads, op.cache.head_dim});
  visit.optional_in("v_bias", op.v_bias, {op.cache.n_kv_heads, op.cache.head_dim});
  visit.in("cos", op.cos, {op.rows, op.n_pairs});
  visit.in("sin", op.sin, {op.rows, op.n_pairs});
  visit.optional_in("v_norm", op.v_norm, {op.cache.head_dim});
  visit.optional_in("q_cos", op.q_cos, {op.rows, op.n_pairs});
  visit.optional_in("q_sin", op.q_sin, {op.rows, op.n_pairs});
  visit.out("q", op.q, {op.rows, op.n_heads, key_dim_of(op.cache)});
}

template <class Visit>
void operands(Attention& op, Visit&& visit) {
  visit.scalar("rows", op.rows);
  visit.scalar("n_heads", op.n_heads);
  visit.stride("gate_row_stride", op.gate_row_stride);
  visit.stride("gate_head_stride", op.gate_head_stride);
  visit.scalar("scale", op.scale);
  visit.scalar("first_slot", op.first_slot);
  visit.scalar("window", op.window);
  visit.scalar("by_row", op.by_row);
  operands(op.cache, visit, Access::kIn);
  visit.in("n_past", op.n_past, {1});
  visit.in("q", op.q, {op.rows, op.n_heads, key_dim_of(op.cache)});
  visit.optional_in("gate", op.gate, {op.rows, op.n_heads, op.cache.head_dim},
                    {op.gate_row_stride, op.gate_head_stride, 1});
  visit.optional_in("sinks", op.sinks, {op.n_heads});
  visit.optional_indices("last_seen", op.last_seen, {op.rows}, 0, op.rows);
  operands(op.tree, visit, op.rows);
  visit.stride("n_query_blocks", op.n_query_blocks);
  visit.stride("list_size", op.list_size);
  visit.optional_in("blocks", op.blocks, {op.n_query_blocks, op.cache.n_kv_heads, op.list_size});
  visit.out("o", op.o, {op.rows, op.n_heads, op.cache.head_dim});
}

template <class Visit>
void operands(KeyScores& op, Visit&& visit) {
  static constexpr int kParts = kKeyScoreParts, kPair = 2;
  visit.scalar("rows", op.rows);
  visit.scalar("n_heads", op.n_heads);
  visit.scalar("first_row", op.first_row);
  visit.scalar("stride", op.stride);
  visit.scalar("scale", op.scale);
  operands(op.cache, visit, Access::kIn);
  visit.in("n_past", op.n_past, {1});
  visit.in("q", op.q, {op.rows, op.n_heads, op.cache.head_dim});
  visit.in_out("scores", op.scores, {op.rows, op.stride});
  visit.out("parts", op.parts, {kParts, op.rows, op.n_heads, kPair});
}

template <class Visit>
void operands(KeyMeans& op, Visit&& visit) {
  visit.scalar("rows", op.rows);
  visit.scalar("max_blocks", op.max_blocks);
  operands(op.cache, visit, Access::kIn);
  visit.in("n_past", op.n_past, {1});
  visit.in_out("means", op.means, {op.cache.n_kv_heads, op.cache.head_dim, op.max_blocks});
}

template <class Visit>
void operands(SelectBlocks& op, Visit&& visit) {
  visit.scalar("rows", op.rows);
  visit.scalar("n_heads", op.n_heads);
  visit.scalar("n_kv_heads", op.n_kv_heads);
  visit.scalar("head_dim", op.head_dim);
  visit.scalar("n_query_blocks", op.n_query_blocks);
  visit.scalar("max_blocks", op.max_blocks);
  visit.scalar("list_size", op.list_size);
  visit.scalar("scale", op.scale);
  visit.scalar("alpha", op.alpha);
  visit.in("n_past", op.n_past, {1});
  visit.in("q", op.q, {op.rows, op.n_heads, op.head_dim});
  visit.in("means", op.means, {op.n_kv_heads, op.head_dim, op.max_blocks});
  visit.in_out("blocks", op.blocks, {op.n_query_blocks, op.n_kv_heads, op.list_size});
}

template <class Visit>
void operands(CopyRows& op, Visit&& visit) {
  visit.scalar("rows", op.rows);
  visit.scalar("dim", op.dim);
  visit.scalar("y_rows", op.y_rows);
  visit.stride("y_stride", op.y_stride);
  visit.in("x", op.x, {op.rows, op.dim});
  visit.optional_in("first", op.first, {1});
  visit.out("y", op.y, {op.y_rows, op.dim}, {op.y_stride, 1});
}

template <class Visit>
void operands(PreviousRow& op, Visit&& visit) {
  visit.scalar("rows", op.rows);
  visit.scalar("dim", op.dim);
  visit.in("x", op.x, {op.rows, op.dim});
  visit.in_out("history", op.history, {op.dim});
  visit.in_out("pending", op.pending, {kMaxTree, op.dim});
  operands(op.accepted, visit);
  operands(op.tree, visit, op.rows);
  visit.out("y", op.y, {op.rows, op.dim});
}

template <class Visit>
void operands(TopTokens& op, Visit&& visit) {
  visit.scalar("rows", op.rows);
  visit.scalar("vocab", op.vocab);
  visit.scalar("k", op.k);
  visit.scalar("scale", op.scale);
  visit.scalar("softcap", op.softcap);
  visit.in("logits", op.logits, {op.rows, op.vocab});
  visit.out("ids", op.ids, {op.rows, op.k});
  visit.out("logprobs", op.logprobs, {op.rows, op.k});
}

template <class Visit>
void operands(BlockConv& op, Visit&& visit) {
  visit.scalar("rows", op.rows);
  visit.scalar("dim", op.dim);
  visit.scalar("n_taps", op.n_taps);
  visit.scalar("group", op.group);
  visit.stride("kernel_stride", op.kernel_stride);
  visit.in("x", op.x, {op.rows, op.dim});
  visit.in("base", op.base, {op.n_taps, op.dim});
  const int n_groups = op.group > 0 ? op.dim / op.group : 0;
  visit.in("kernels", op.kernels, {op.rows, op.n_taps, n_groups}, {op.kernel_stride, n_groups, 1});
  visit.optional_in("add", op.add, {op.rows, op.dim});
  visit.out("y", op.y, {op.rows, op.dim});
}

template <class Visit>
void operands(SelectCandidates& op, Visit&& visit) {
  visit.scalar("type", op.type);
  visit.scalar("rows", op.rows);
  visit.scalar("rank", op.rank);
  visit.scalar("vocab", op.vocab);
  visit.scalar("k", op.k);
  visit.in("hidden", op.hidden, {op.rows, op.rank});
  visit.weights("predecessors", op.predecessors, op.type, op.vocab, op.rank);
  visit.weights("successors", op.successors, op.type, op.vocab, op.rank);
  visit.indices("root", op.root, {1}, 0, op.vocab);
  visit.in_out("ids", op.ids, {op.rows, op.k});
  visit.in_out("logprobs", op.logprobs, {op.rows, op.k});
}

template <class Visit>
void operands(GrowTree& op, Visit&& visit) {
  visit.scalar("sequences", op.sequences);
  visit.scalar("depth", op.depth);
  visit.scalar("k", op.k);
  visit.scalar("max_rows", op.max_rows);
  visit.scalar("rows", op.rows);
  visit.in("ids", op.ids, {op.sequences, op.depth, op.k});
  visit.in("logprobs", op.logprobs, {op.sequences, op.depth, op.k});
  visit.in("root", op.root, {op.sequences});
  visit.in("n_past", op.n_past, {op.sequences});
  visit.out("n_rows", op.n_rows, {op.sequences});
  visit.out("tokens", op.tokens, {op.sequences, op.max_rows});
  visit.out("parents", op.parents, {op.sequences, op.max_rows});
  visit.out("depths", op.depths, {op.sequences, op.max_rows});
  visit.out("scores", op.scores, {op.sequences, op.max_rows});
  visit.out("ancestors", op.ancestors, {op.sequences, op.max_rows});
  visit.out("positions", op.positions, {op.sequences, 3, op.rows});
}

template <class Visit>
void operands(CausalConv& op, Visit&& visit) {
  visit.scalar("rows", op.rows);
  visit.scalar("channels", op.channels);
  visit.scalar("n_taps", op.n_taps);
  visit.in("x", op.x, {op.rows, op.channels});
  visit.in("w", op.w, {op.channels, op.n_taps});
  visit.in_out("history", op.history, {op.n_taps - 1, op.channels});
  visit.in_out("pending", op.pending, {kMaxTree, op.channels});
  operands(op.accepted, visit);
  operands(op.tree, visit, op.rows);
  visit.out("y", op.y, {op.rows, op.channels});
}

// The operands that only DeltaInputs has.
template <class Visit>
void gate_operands(DeltaPrepare& op, Visit&& visit) {
  visit.scalar("n_v_heads", op.n_v_heads);
  visit.scalar("eps", op.eps);
  visit.in_out("g", op.g, {op.rows, op.n_v_heads});
  visit.in_out("beta", op.beta, {op.rows, op.n_v_heads});
  visit.in("a_neg", op.a_neg, {op.n_v_heads});
  visit.in("dt_bias", op.dt_bias, {op.n_v_heads});
}

template <class Visit>
void operands(DeltaPrepare& op, Visit&& visit) {
  visit.scalar("rows", op.rows);
  visit.scalar("n_k_heads", op.n_k_heads);
  visit.scalar("dk", op.dk);
  visit.stride("row_stride", op.row_stride);
  visit.in_out("q", op.q, {op.rows, op.n_k_heads, op.dk}, {op.row_stride, op.dk, 1});
  visit.in_out("k", op.k, {op.rows, op.n_k_heads, op.dk}, {op.row_stride, op.dk, 1});
  gate_operands(op, visit);
}

template <class Visit>
void operands(DeltaInputs& op, Visit&& visit) {
  operands(op.conv, visit);
  visit.scalar("n_k_heads", op.prepare.n_k_heads);
  visit.scalar("dk", op.prepare.dk);
  visit.scalar("by_row", op.by_row);
  op.prepare.rows = op.conv.rows;
  op.prepare.row_stride = op.conv.channels;
  visit.inside(op.prepare.q, "y", 0);
  visit.inside(op.prepare.k, "y", long(op.prepare.n_k_heads) * op.prepare.dk);
  gate_operands(op.prepare, visit);
}

// The operands of GatedDelta that DeltaNet has too, after rows, n_k_heads, n_v_heads and dk.
template <class Visit>
void state_operands(GatedDelta& op, Visit&& visit) {
  visit.scalar("dv", op.dv);
  visit.scalar("flip", op.flip);
  visit.scalar("order", op.order);
  visit.in_out("S", op.S, {op.n_v_heads, op.dk, op.dv});
  visit.in_out("k_pending_0", op.k_pending[0], {kMaxTree, op.n_k_heads, op.dk});
  visit.in_out("k_pending_1", op.k_pending[1], {kMaxTree, op.n_k_heads, op.dk});
  visit.in_out("cs_pending_0", op.cs_pending[0], {kMaxTree, op.n_v_heads});
  visit.in_out("cs_pending_1", op.cs_pending[1], {kMaxTree, op.n_v_heads});
  visit.in_out("delta", op.delta, {kMaxTree, op.n_v_heads, op.dv});
  visit.indices("buffer", op.buffer, {1}, 0, 2);
  visit.out("o", op.o, {op.rows, op.n_v_heads, op.dv});
}

template <class Visit>
void operands(GatedDelta& op, Visit&& visit) {
  visit.scalar("rows", op.rows);
  visit.scalar("n_k_heads", op.n_k_heads);
  visit.scalar("n_v_heads", op.n_v_heads);
  visit.scalar("dk", op.dk);
  visit.scalar("by_row", op.by_row);
  visit.stride("row_stride", op.row_stride);
  visit.in("q", op.q, {op.rows, op.n_k_heads, op.dk}, {op.row_stride, op.dk, 1});
  visit.in("k", op.k, {op.rows, op.n_k_heads, op.dk}, {op.row_stride, op.dk, 1});
  state_operands(op, visit);
  visit.in("v", op.v, {op.rows, op.n_v_heads, op.dv}, {op.row_stride, op.dv, 1});
  visit.in("g", op.g, {op.rows, op.n_v_heads});
  visit.in("beta", op.beta, {op.rows, op.n_v_heads});
  operands(op.accepted, visit);
  operands(op.tree, visit, op.rows);
}

template <class Visit>
void operands(DeltaNet& op, Visit&& visit) {
  operands(op.inputs, visit);
  const DeltaPrepare& prepare = op.inputs.prepare;
  const long keys = long(prepare.n_k_heads) * prepare.dk;
  GatedDelta& delta = op.delta;
  delta.rows = prepare.rows;
  delta.n_k_heads = prepare.n_k_heads;
  delta.n_v_heads = prepare.n_v_heads;
  delta.dk = prepare.dk;
  delta.row_stride = prepare.row_stride;
  delta.by_row = op.inputs.by_row;
  state_operands(delta, visit);
  visit.inside(delta.q, "y", 0);
  visit.inside(delta.k, "y", keys);
  visit.inside(delta.v, "y", 2 * keys);
  visit.inside(delta.g, "g", 0);
  visit.inside(delta.beta, "beta", 0);
  visit.inside(delta.accepted.path, "accepted", 0);
  visit.inside(delta.accepted.n, "n_accepted", 0);
  visit.inside(delta.tree.parent, "parent", 0);
  visit.inside(delta.tree.ancestors, "ancestors", 0);
  op.norm.rows = delta.rows;
  op.norm.heads = delta.n_v_heads;
  op.norm.dim = delta.dv;
  op.norm.eps = prepare.eps;
  visit.inside(op.norm.o, "o", 0);
  visit.in("z", op.norm.z, {op.norm.rows, op.norm.heads, op.norm.dim});
  visit.in("norm_w", op.norm.w, {op.norm.dim});
  visit.inside(op.norm.y, "o", 0);
}

// The memory of an operand, from its first value to its last. Pages and page tables have unknown sizes: 0 bytes.
struct Operand {
  Access access;
  const void* data;
  size_t bytes;
};

template <class Each>
struct OperandVisitor {
  Each& each;

  template <class T>
  void pointer(Access access, const T* p, Axes shape, Axes strides) const {
    long last = 0, contiguous = 1;
    bool is_empty = false;
    for (size_t i = shape.size(); i-- > 0;) {
      const long size = shape.begin()[i].size();
      is_empty |= size <= 0;
      last += (size - 1) * (strides.size() > 0 ? strides.begin()[i].size() : contiguous);
      contiguous *= size;
    }
    each(Operand{access, p, is_empty ? 0 : size_t(last + 1) * sizeof(T)});
  }
  void scalar(const char*, const auto&) const {}
  void stride(const char*, const auto&) const {}
  void in(const char*, const auto* p, Axes shape, Axes strides = {}) const { pointer(Access::kIn, p, shape, strides); }
  void out(const char*, const auto* p, Axes shape, Axes strides = {}) const {
    pointer(Access::kOut, p, shape, strides);
  }
  void in_out(const char*, const auto* p, Axes shape, Axes strides = {}) const {
    pointer(Access::kInOut, p, shape, strides);
  }
  void optional_in(const char*, const auto* p, Axes shape, Axes strides = {}) const {
    if (p) pointer(Access::kIn, p, shape, strides);
  }
  void optional_in_out(const char*, const auto* p, Axes shape) const {
    if (p) pointer(Access::kInOut, p, shape, {});
  }
  void indices(const char*, const auto* p, Axes shape, long, long) const { pointer(Access::kIn, p, shape, {}); }
  void optional_indices(const char*, const auto* p, Axes shape, long, long) const {
    if (p) pointer(Access::kIn, p, shape, {});
  }
  void weights(const char*, const void* p, DType type, int n_out, int n_in) const {
    each(Operand{Access::kIn, p, row_bytes(type, size_t(n_in)) * n_out});
  }
  void pages(const char*, const void* p, KvType, int, int, Access access) const { each(Operand{access, p, 0}); }
  void page_table(const char*, const int32_t* p) const { each(Operand{Access::kIn, p, 0}); }
  void rounded(const char*, const RoundedRows&, int, int) const {}
  void inside(const auto*, const char*, long) const {}
};

// Calls each(Operand) for every pointer of an op, except null ones and rounded rows.
template <class Op, class Each>
void for_each_operand(Op op, Each&& each) {
  operands(op, OperandVisitor<std::remove_reference_t<Each>>{each});
}

// Bytes an op reads and writes; an operand that it updates counts twice.
template <class Op>
size_t operand_bytes(const Op& op) {
  size_t total = 0;
  for_each_operand(
      op, [&](const Operand& operand) { total += operand.bytes * (operand.access == Access::kInOut ? 2 : 1); });
  return total;
}

// Whether every operand begins at a multiple of 16 bytes.
template <class Op>
bool operands_are_aligned(const Op& op) {
  bool all = true;
  for_each_operand(op, [&](const Operand& operand) { all &= reinterpret_cast<uintptr_t>(operand.data) % 16 == 0; });
  return all;
}

// Whether operands() has the fields of an op.
template <class Op>
concept DescribedOp = requires(Op& op) { operands(op, 0); };

// Calls f with a zeroed op of this name and returns its result.
template <class F>
auto with_op(std::string_view name, F&& f) {
  std::optional<decltype(f(RmsNorm{}))> result;
  Ops::for_each([&](auto named) {
    using Op = typename decltype(named)::Op;
    if constexpr (DescribedOp<Op>)
      if (name == named.name()) result.emplace(f(Op{}));
  });
  LB_CHECK(result, kInvalid, "there is no op \"", name, "\" here");
  return *std::move(result);
}

}  // namespace lb
