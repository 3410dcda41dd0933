// The list of ops. Every stream's table of bodies and the look-up by name are generated from it: a new op is one line.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <type_traits>

#include "ops/all_reduce.h"
#include "ops/attention.h"
#include "ops/block_conv.h"
#include "ops/copy_rows.h"
#include "ops/delta_net.h"
#include "ops/embed.h"
#include "ops/experts.h"
#include "ops/grow_tree.h"
#include "ops/key_scores.h"
#include "ops/linear.h"
#include "ops/previous_row.h"
#include "ops/rms_norm.h"
#include "ops/rope.h"
#include "ops/round_rows.h"
#include "ops/select_blocks.h"
#include "ops/select_candidates.h"
#include "ops/top_tokens.h"
#include "ops/vision.h"

namespace lb {

template <size_t kSize>
struct OpName {
  char text[kSize];
  consteval OpName(const char (&name)[kSize]) { std::copy_n(name, kSize, text); }
};

template <class T, OpName kName>
struct NamedOp {
  using Op = T;
  static constexpr const char* name() { return kName.text; }
};

template <class... Named>
struct OpList {
  static constexpr size_t kSize = sizeof...(Named);

  template <class Op>
  static constexpr bool has() {
    return (std::is_same_v<Op, typename Named::Op> || ...);
  }
  template <class Op>
  static constexpr size_t index() {
    const std::array<bool, kSize> is_op = {std::is_same_v<Op, typename Named::Op>...};
    return std::find(is_op.begin(), is_op.end(), true) - is_op.begin();
  }
  // {make(NamedOp)...}, in the order of the list.
  template <class Make>
  static constexpr auto map(Make&& make) {
    return std::array{make(Named{})...};
  }
  // Calls f(NamedOp) for each op.
  template <class F>
  static void for_each(F&& f) {
    (f(Named{}), ...);
  }
};

using Ops = OpList<  //
    NamedOp<Embed, "embed">, NamedOp<RopeTable, "rope_table">, NamedOp<Rope, "rope">, NamedOp<RmsNorm, "rms_norm">,
    NamedOp<GatedRmsNorm, "gated_rms_norm">, NamedOp<AddNorm, "add_norm">, NamedOp<SwiGlu, "swiglu">,
    NamedOp<GeGlu, "geglu">, NamedOp<SoftCap, "soft_cap">, NamedOp<RoundRows, "round_rows">, NamedOp<Linear, "linear">,
    NamedOp<LinearGroup, "linear_group">, NamedOp<RouteExperts, "route_experts">, NamedOp<MixExperts, "mix_experts">,
    NamedOp<AddBias, "add_bias">, NamedOp<KvAppend, "kv_append">, NamedOp<KvMove, "kv_move">,
    NamedOp<AttentionPrepare, "attention_prepare">, NamedOp<Attention, "attention">, NamedOp<KeyScores, "key_scores">,
    NamedOp<KeyMeans, "key_means">, NamedOp<SelectBlocks, "select_blocks">, NamedOp<CausalConv, "causal_conv">,
    NamedOp<DeltaPrepare, "delta_prepare">, NamedOp<DeltaInputs, "delta_inputs">, NamedOp<GatedDelta, "gated_delta">,
    NamedOp<DeltaNet, "delta_net">, NamedOp<CopyRows, "copy_rows">, NamedOp<PreviousRow, "previous_row">,
    NamedOp<TopTokens, "top_tokens">, NamedOp<BlockConv, "block_conv">, NamedOp<SelectCandidates, "select_candidates">,
    NamedOp<GrowTree, "grow_tree">, NamedOp<AllReduce, "all_reduce">, NamedOp<AllGather, "all_gather">,
    NamedOp<ReadPatches, "read_patches">, NamedOp<AddPositions, "add_positions">,
    NamedOp<AddAxisPositions, "add_axis_positions">, NamedOp<PoolPatches, "pool_patches">, NamedOp<Clamp, "clamp">,
    NamedOp<LayerNorm, "layer_norm">, NamedOp<BiasGelu, "bias_gelu">, NamedOp<SplitHeads, "split_heads">,
    NamedOp<MergeHeads, "merge_heads">>;

template <class Op>
concept ListedOp = Ops::has<Op>();

}  // namespace lb
