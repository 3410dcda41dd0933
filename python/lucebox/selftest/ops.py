"""Single ops on the CPU or on a pack's device, for the self-test and the tests.

`on` selects where: `pack=` a device's pack, or for the CPU `isa=` and `threads=`. `sequences=n` runs n copies of a
one-row op in one launch, and checks that their outputs are equal. States and caches are returned as new arrays. The
fields of each op, and their shapes, are in src/cpp/ops/operands.h.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lucebox import _engine, _kernels

__all__ = [
    "Op",
    "add_axis_positions",
    "add_bias",
    "add_norm",
    "add_positions",
    "attention",
    "attention_prepare",
    "bias_gelu",
    "block_conv",
    "causal_conv",
    "clamp",
    "copy_rows",
    "delta_inputs",
    "delta_prepare",
    "delta_state",
    "delta_state_after",
    "embed",
    "function",
    "gated_delta",
    "gated_rms_norm",
    "gated_rms_norm_rounded",
    "geglu",
    "grow_tree",
    "key_means",
    "key_scores",
    "kv_append",
    "kv_move",
    "layer_norm",
    "linear",
    "linear_group",
    "megakernel",
    "merge_heads",
    "mix_experts",
    "pool_patches",
    "previous_row",
    "products_of",
    "read_patches",
    "reader",
    "rms_norm",
    "rms_norm_rounded",
    "rope",
    "rope_table",
    "round_rows",
    "route_experts",
    "run",
    "run_calls",
    "run_each",
    "sample",
    "sample_batched",
    "select_blocks",
    "select_candidates",
    "soft_cap",
    "split_heads",
    "swiglu",
    "swiglu_rounded",
    "take_started",
    "top_tokens",
]

Array = NDArray[Any]
Bytes = NDArray[np.uint8]
F32 = NDArray[np.float32]
I32 = NDArray[np.int32]
Masks = NDArray[np.uint64]
Pack = _engine.gpu.Pack
Call = tuple[str, list[dict[str, Any]], list[dict[str, Any]]]


def run(op: str, on: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """The outputs of an op by name."""
    where = {name: value for name, value in on.items() if name != "sequences"}
    got, *others = run_each(op, where, on.get("sequences", 1) * [fields])
    for other in others:
        for name, value in got.items():
            np.testing.assert_array_equal(other[name], value, f"{op}: {name} of equal sequences")
    return got


def run_each(op: str, on: dict[str, Any], each: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The outputs of an op of several sequences, or of products of one x, in one launch if there is a kernel for it."""
    return run_calls([(op, each, [])], **on)[0][0]


def run_calls(calls: list[Call], **on: Any) -> list[tuple[list[dict[str, Any]], list[dict[str, Any]]]]:
    """Runs calls as the engine sends them to a stream: what the ops of each wrote, and their readers. A call is an op,
    its fields for each sequence, and the fields of the products that read its result (reader())."""
    return _kernels.ops.run(
        [(op, [_complete(fields) for fields in each], readers) for op, each, readers in calls], **on
    )


def _complete(given: dict[str, Any]) -> dict[str, Any]:
    """The fields, with the numbers that follow from others in the same place. Pages: [n, n_kv_heads, 64, head_dim] of
    float32 or of 16-bit patterns; of other types [n, n_kv_heads, 64, bytes of a slot] of bytes. With key_tail, head_dim
    is given."""
    fields = {name: value for name, value in given.items() if value is not None}
    if "accepted" in fields:
        fields["n_accepted"] = len(fields["accepted"])
    if "page_table" not in fields:
        return fields
    axes = (("k", 2), ("q", 2), ("means", 1), ("k_pages", 3))
    dim = next(fields[name].shape[axis] for name, axis in axes if name in fields)
    values = {} if fields.get("key_tail") else {"v_pages": fields["k_pages"]}
    fields = {**values, "v_type": fields["k_type"], "head_dim": int(dim), "key_tail": 0, **fields}
    dim = fields["head_dim"]
    if "gate" in fields:  # [query | gate] heads
        fields["gate"] = fields["gate"][:, :, fields["gate"].shape[2] - dim :]
    if "u" in fields:  # likewise; queries alone that need no norm are computed in place
        fields |= {"q": "u"} if "q_norm" not in fields and fields["u"].shape[2] == dim else {}
        fields["u"] = fields["u"][:, :, :dim]
    return {**fields, "n_past": int(fields["n_past"])}


def function(op: str, pack: Pack | None = None) -> Callable[..., Any]:
    """The op of this name, from this module or the engine, bound to the CPU or to a pack's device."""
    here: Callable[..., Any] | None = globals().get(op)
    if here is None:
        return partial(getattr(_kernels.ops, op), pack)
    return here if pack is None else partial(here, pack=pack)


def take_started(pack: Pack) -> list[str]:
    """Names of the kernels started on a pack by ops since the last call of this."""
    return [launch.partition("<<<")[0] for launch in _kernels.ops.take_launches(pack)]


class Op:
    """An op as a function of its fields, in the order of `arguments`, that returns its `results`: one, a tuple, or all
    by name. On a device, the first one takes the memory of the field `in_place`, if that is given, as in the engine."""

    def __init__(self, op: str, arguments: str, results: str = "", in_place: str = "", **defaults: Any) -> None:
        self._op, self._arguments, self._results = op, arguments.split(), results.split()
        self._in_place, self._defaults = in_place, defaults

    def fields(self, *values: Any, **named: Any) -> dict[str, Any]:
        return {**self._defaults, **dict(zip(self._arguments, values, strict=False)), **named}

    def __call__(self, *values: Any, **on: Any) -> Any:
        fields = self.fields(*values, **{name: on.pop(name) for name in self._arguments if name in on})
        if self._in_place and "pack" in on and fields[self._in_place] is not None:
            fields[self._results[0]] = self._in_place
        got = run(self._op, on, **fields)
        if not self._results:
            return got
        return got[self._results[0]] if len(self._results) == 1 else tuple(map(got.get, self._results))


rms_norm = Op("rms_norm", "x w eps", "y")
gated_rms_norm = Op("gated_rms_norm", "o z w eps", "y", "o")
swiglu = Op("swiglu", "gate up", "y")
geglu = Op("geglu", "gate up", "y")
add_norm = Op("add_norm", "x z w eps scale", "y")
soft_cap = Op("soft_cap", "x cap", "x")
# The bytes of quantised rows: codes, low codes if there are 16 bits, scales, sums.
round_rows = Op("round_rows", "x y", "y")
rms_norm_rounded = Op("rms_norm", "x w eps rounded", "y rounded")
gated_rms_norm_rounded = Op("gated_rms_norm", "o z w eps rounded", "y rounded", "o")
swiglu_rounded = Op("swiglu", "gate up rounded", "y rounded", "gate")
route_experts = Op("route_experts", "logits k is_normalized bias scale", "experts weights", bias=None, scale=None)
add_bias = Op("add_bias", "y bias", "y")
rope = Op("rope", "x cos sin pairs", "x", pairs="halves")
rope_table = Op("rope_table", "pos axis inv_freq scale row_scales period", "cos sin", scale=1.0, row_scales=None,
                period=None)  # fmt: skip
embed = Op("embed", "table type dim ids scale", "y", scale=1.0)
layer_norm = Op("layer_norm", "x w b eps", "y")
bias_gelu = Op("bias_gelu", "y bias is_exact", "y")
read_patches = Op("read_patches", "rgb level patch merge height columns first rows", "y")
add_positions = Op("add_positions", "y table height columns merge first", "y")
add_axis_positions = Op("add_axis_positions", "y table columns merge first", "y")
pool_patches = Op("pool_patches", "x factor bias scale", "y", bias=None, scale=None)
clamp = Op("clamp", "x lowest highest", "y")
split_heads = Op("split_heads", "x bias cos sin k_pages v_pages type padded first heads dim is_by_axis",
                 "q k_pages v_pages", is_by_axis=0)  # fmt: skip
merge_heads = Op("merge_heads", "x dim", "y")
# x w^T (+ add), with w [n_out, n_in] as the bytes of its blocks.
linear = Op("linear", "w type n_out n_in x add activations", "y", "add", add=None, activations="int8")
previous_row = Op("previous_row", "x history pending accepted parent", "y history pending")
top_tokens = Op("top_tokens", "logits k scale softcap", "ids logprobs", scale=1.0, softcap=0.0)
block_conv = Op("block_conv", "x base kernels group add", "y", "add", add=None)
select_candidates = Op("select_candidates", "hidden predecessors successors type root ids logprobs", "ids logprobs")
grow_tree = Op("grow_tree", "ids logprobs root n_past max_rows rows")
# With key_tail there are no v_pages, and the result has None instead.
kv_append = Op("kv_append", "k v k_pages v_pages k_type v_type page_table n_past head_dim key_tail", "k_pages v_pages")
# The shape of unpacked pages gives head_dim.
kv_move = Op("kv_move", "k_pages v_pages k_type v_type page_table accepted n_past head_dim key_tail", "k_pages v_pages")
attention_prepare = Op("attention_prepare", "u k v q_norm k_norm cos sin k_pages v_pages k_type v_type page_table "
                        "n_past eps pairs q_bias k_bias v_bias v_norm q_cos q_sin n_tail_pairs head_dim key_tail",
                        "q k_pages v_pages", pairs="halves",
                        q_bias=None, k_bias=None, v_bias=None, v_norm=None, q_cos=None, q_sin=None,
                        n_tail_pairs=0)  # fmt: skip
attention = Op("attention", "q k_pages v_pages k_type v_type page_table n_past scale gate ancestors parent first_slot "
                "window blocks sinks by_row last_seen head_dim key_tail", "o", first_slot=0, window=0, sinks=None,
               last_seen=None)  # fmt: skip
key_scores = Op("key_scores", "q k_pages k_type page_table n_past scale scores first_row", "scores", first_row=0)
# Updated for the blocks that `rows` rows after n_past complete.
key_means = Op("key_means", "means k_pages k_type page_table n_past rows", "means")
causal_conv = Op("causal_conv", "x w history pending accepted parent", "y history pending")
# y with q and k prepared, the state after it, and the gates.
delta_inputs = Op("delta_inputs", "x w history pending g beta a_neg dt_bias n_k_heads dk eps accepted parent by_row",
                   "y history pending g beta")  # fmt: skip


def linear_group(
    weights: list[Bytes], dtypes: list[str], n_out: list[int], n_in: int, x: F32, add: list[F32] | None = None,
    activations: str = "int8", **on: Any,
) -> list[F32]:  # fmt: skip
    """Up to four products that share x; one launch per weight type."""
    products = products_of(weights, dtypes, n_out, n_in, x, add, activations)
    return [got["y"] for got in run_each("linear", on, products)]


def mix_experts(
    gate: Bytes, up: Bytes | None, down: Bytes, types: tuple[str, str, str], n_experts: int, ffn: int, x: F32,
    experts: I32, weights: F32, shared: F32 | None = None, shared_gate: F32 | None = None, add: F32 | None = None,
    biases: tuple[F32, F32, F32] | None = None, clamp: float = 0.0, activations: str = "int8", is_gelu: bool = False,
    **on: Any,
) -> F32:  # fmt: skip
    """y [rows, dim] from the bytes of all experts' blocks. up None: an expert's rows of gate and then of up are in
    `gate`. clamp: the limit of a clamped activation. biases: of gate, up [n_experts, ffn] and down [n_experts, dim]."""
    (rows, dim), k, is_joined = x.shape, experts.shape[1], up is None
    gate_bias, up_bias, down_bias = biases or (None, None, None)
    y: F32 = run("mix_experts", on, gate=gate, up=gate if up is None else up, down=down, gate_type=types[0],
                 up_type=types[1], down_type=types[2], n_experts=n_experts, dim=dim, ffn=ffn, rows=rows, k=k,
                 gate_rows=2 * ffn if is_joined else ffn, gate_first=0, up_rows=2 * ffn if is_joined else ffn,
                 up_first=ffn if is_joined else 0, down_rows=dim, down_first=0, limit=clamp, is_gelu=int(is_gelu),
                 activations=activations,
                 x=x, experts=experts, weights=weights, shared=shared, shared_gate=shared_gate, add=add,
                 gate_bias=gate_bias, up_bias=up_bias, down_bias=down_bias)["y"]  # fmt: skip
    return y


def copy_rows(x: F32, y: F32, column: int, first: int | None = None, **on: Any) -> F32:
    """y with the rows of x copied to the columns from `column` on; with `first`, y is a ring and the copy starts at row
    `first`."""
    copied: F32 = y.copy()
    columns = copied[:, column : column + x.shape[1]]
    columns[:] = run("copy_rows", on, x=x, y=columns, first=first)["y"]
    return copied


def select_blocks(
    q: F32, means: F32, n_past: int, scale: float, alpha: float, n_query_blocks: int, **on: Any
) -> I32:  # fmt: skip
    """[n_query_blocks, kv_heads, 2 + max_blocks]: per query block the length of its list of key blocks, then the
    list."""
    blocks = np.zeros((n_query_blocks, means.shape[0], 2 + means.shape[2]), np.int32)
    got = run("select_blocks", on, q=q, means=means, blocks=blocks, n_past=np.array([n_past], np.int32), scale=scale,
              alpha=alpha)  # fmt: skip
    return np.asarray(got["blocks"])


def delta_prepare(
    qk: F32, g: F32, beta: F32, a_neg: F32, dt_bias: F32, n_k_heads: int, dk: int, eps: float, **on: Any
) -> tuple[F32, F32, F32]:
    """qk, g and beta, prepared. q and k are the first values of each row of qk."""
    keys = n_k_heads * dk
    q, k = (_heads(qk[:, i * keys : (i + 1) * keys], n_k_heads) for i in range(2))
    got = run("delta_prepare", on, q=q, k=k, g=g, beta=beta, a_neg=a_neg, dt_bias=dt_bias, row_stride=qk.shape[1],
              eps=eps)  # fmt: skip
    rest = qk[:, 2 * keys :]
    return np.concatenate([*(got[name].reshape(len(qk), keys) for name in "qk"), rest], axis=1), got["g"], got["beta"]


def gated_delta(
    qkv: F32, g: F32, beta: F32, S: F32, k_pending: F32, cs_pending: F32, delta: F32, buffer: int = 0,
    accepted: I32 | None = None, parent: I32 | None = None, ancestors: Masks | None = None, order: str = "grouped",
    by_row: bool = False, **on: Any,
) -> tuple[F32, F32, F32, F32, F32]:  # fmt: skip
    """o and the state after it: S, k_pending, cs_pending, delta. A row of qkv holds prepared q, prepared k, and v.
    `buffer` selects the pending buffer that holds the previous append's rows.

    cs_pending is the log decay summed along the path, as on devices, unless by_row. The CPU stores each row's own log
    decay.
    """
    n_k_heads, keys = k_pending.shape[2], k_pending.shape[2] * k_pending.shape[3]
    q, k, v = np.split(qkv, (keys, 2 * keys), axis=1)
    if "pack" not in on:
        cs_pending = cs_pending.copy()
        if accepted is not None and len(accepted):
            sums = cs_pending[buffer][accepted]
            cs_pending[buffer][accepted[1:]] -= sums[:-1]
    got = run("gated_delta", on, q=_heads(q, n_k_heads), k=_heads(k, n_k_heads), v=_heads(v, delta.shape[1]), g=g,
              beta=beta, parent=parent, ancestors=ancestors, row_stride=qkv.shape[1], by_row=by_row,
              **delta_state(S, k_pending, cs_pending, delta, buffer, order), accepted=accepted)  # fmt: skip
    o, *state = got["o"], *delta_state_after(got)
    if "pack" not in on:
        sums = state[2][1 - buffer]
        for row in range(len(g)):
            before = row - 1 if parent is None else parent[row]
            if before >= 0:
                sums[row] += sums[before]
    return o, *state


def megakernel(x: F32, norm: F32, eps: float, w: Bytes, dtype: str, n_out: int, *, pack: Pack, **options: Any) -> F32:
    """Logits of a norm and a GEMV, fused into one phase of a megakernel."""
    of_norm = {"x": x.reshape(1, 1, -1), "w": norm, "eps": eps}
    calls = [("rms_norm", [of_norm], [reader((0, 0, "y"), w, dtype, n_out, len(x), 1)])]
    [(_, [product])] = _kernels.ops.megakernel(pack, calls, **options)
    logits: F32 = product["y"][0]
    return logits


def sample(logits: F32, prompt: I32, *, pack: Pack, **options: Any) -> dict[str, Any]:
    """A token of each row of logits, and what the device then knows."""
    return sample_batched(logits[None], prompt, pack=pack, **options)[0]


def sample_batched(logits: F32, prompt: I32, *, pack: Pack, **options: Any) -> list[dict[str, Any]]:
    """sample() of sequences with this prompt. logits: [sequences, steps, vocab]."""
    return [dict(result) for result in _kernels.ops.sample(pack, logits, prompt, **options)]


def products_of(
    weights: list[Bytes], dtypes: list[str], n_out: list[int], n_in: int, x: F32, add: list[F32] | None,
    activations: str,
) -> list[dict[str, Any]]:  # fmt: skip
    """The fields of each product. `add` aliases y, as for a residual."""
    shared = {"n_in": n_in, "x": x, "activations": activations}
    each = [{**shared, "w": w, "type": d, "n_out": n} for w, d, n in zip(weights, dtypes, n_out, strict=True)]
    if add is None:
        return each
    return [{**product, "add": a, "y": "add"} for product, a in zip(each, add, strict=True)]


def reader(x: tuple[int, int, str], w: Bytes, dtype: str, n_out: int, n_in: int, rows: int) -> dict[str, Any]:
    """The fields of a product of what an earlier op of the calls writes."""
    return {"w": w, "type": dtype, "n_out": n_out, "n_in": n_in, "rows": rows, "activations": "int8", "x": x}


def _heads(rows: F32, heads: int) -> F32:
    """[rows, heads, dim], a view."""
    row, value = rows.strides
    dim = rows.shape[1] // heads
    return np.lib.stride_tricks.as_strided(rows, (len(rows), heads, dim), (row, dim * value, value))


def delta_state(S: F32, k_pending: F32, cs_pending: F32, delta: F32, buffer: int, order: str) -> dict[str, Any]:
    """The fields of a recurrent layer's state. Passes the opposite `buffer` with flip = 1, which selects the same
    buffer."""
    k, cs = (
        {f"{name}_pending_{i}": both[i] for i in range(2)} for name, both in (("k", k_pending), ("cs", cs_pending))
    )
    return {**k, **cs, "S": S, "delta": delta, "buffer": 1 - buffer, "flip": 1, "order": order}


def delta_state_after(got: dict[str, Any]) -> tuple[F32, F32, F32, F32]:
    k, cs = (np.stack([got[f"{name}_pending_{i}"] for i in range(2)]) for name in ("k", "cs"))
    return got["S"], k, cs, got["delta"]
