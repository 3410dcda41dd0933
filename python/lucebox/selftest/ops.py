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
    "attention",
    "attention_prepare",
    "block_conv",
    "causal_conv",
    "copy_rows",
    "delta_inputs",
    "delta_net",
    "delta_prepare",
    "embed",
    "function",
    "gated_delta",
    "gated_rms_norm",
    "gated_rms_norm_rounded",
    "grow_tree",
    "kv_append",
    "kv_move",
    "linear",
    "linear_group",
    "matmul",
    "matmul_chain",
    "matmul_group",
    "megakernel",
    "previous_row",
    "rms_norm",
    "rms_norm_rounded",
    "rope",
    "rope_table",
    "round_rows",
    "run",
    "select_candidates",
    "swiglu",
    "swiglu_rounded",
    "top_tokens",
]

Array = NDArray[Any]
F32 = NDArray[np.float32]
I32 = NDArray[np.int32]
Masks = NDArray[np.uint64]


def run(op: str, on: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """The outputs of an op by name."""
    if "sequences" in on:
        given = {name: value for name, value in fields.items() if value is not None}
        *others, got = _kernels.gpu_ops.run_several(on["pack"], op, on["sequences"] * [given])
        for other in others:
            for name, value in got.items():
                np.testing.assert_array_equal(other[name], value, f"{op}: {name} of equal sequences")
        return dict(got)
    if "pack" in on:
        return dict(_kernels.gpu_ops.run(on["pack"], op, **fields))
    return dict(_kernels.ops.run(op, **on, **fields))


def function(op: str, pack: _engine.gpu.Pack | None = None) -> Callable[..., Any]:
    """The op of this name, from this module or the engine, bound to the CPU or to a pack's device."""
    here: Callable[..., Any] | None = globals().get(op)
    if pack is None:
        return here or getattr(_kernels.ops, op)
    return partial(here, pack=pack) if here else partial(getattr(_kernels.gpu_ops, op), pack)


def rms_norm(x: F32, w: F32, eps: float, **on: Any) -> F32:
    y: F32 = run("rms_norm", on, x=x, w=w, eps=eps)["y"]
    return y


def gated_rms_norm(o: F32, z: F32, w: F32, eps: float, **on: Any) -> F32:
    """In place on a device, as the engine does."""
    y: F32 = run("gated_rms_norm", on, o=o, z=z, w=w, eps=eps, y="o" if "pack" in on else None)["y"]
    return y


def swiglu(gate: F32, up: F32, **on: Any) -> F32:
    y: F32 = run("swiglu", on, gate=gate, up=up)["y"]
    return y


def round_rows(x: F32, bits: int, *, pack: _engine.gpu.Pack) -> NDArray[np.uint8]:
    """The bytes of the quantised rows: codes, low codes if bits is 16, scales, sums."""
    y: NDArray[np.uint8] = run("round_rows", {"pack": pack}, x=x, y=bits)["y"]
    return y


def rms_norm_rounded(x: F32, w: F32, eps: float, bits: int, *, pack: _engine.gpu.Pack) -> tuple[F32, NDArray[np.uint8]]:
    got = run("rms_norm", {"pack": pack}, x=x, w=w, eps=eps, rounded=bits)
    return got["y"], got["rounded"]


def gated_rms_norm_rounded(
    o: F32, z: F32, w: F32, eps: float, bits: int, *, pack: _engine.gpu.Pack
) -> tuple[F32, NDArray[np.uint8]]:
    """In place, as the engine does."""
    got = run("gated_rms_norm", {"pack": pack}, o=o, z=z, w=w, eps=eps, y="o", rounded=bits)
    return got["y"], got["rounded"]


def swiglu_rounded(gate: F32, up: F32, bits: int, *, pack: _engine.gpu.Pack) -> tuple[F32, NDArray[np.uint8]]:
    """In place, as the engine does."""
    got = run("swiglu", {"pack": pack}, gate=gate, up=up, y="gate", rounded=bits)
    return got["y"], got["rounded"]


def rope(x: F32, cos: F32, sin: F32, pairs: str = "halves", **on: Any) -> F32:
    y: F32 = run("rope", on, x=x, cos=cos, sin=sin, pairs=pairs)["x"]
    return y


def rope_table(pos: I32, axis: NDArray[np.uint8], inv_freq: F32, scale: float = 1.0, **on: Any) -> tuple[F32, F32]:
    got = run("rope_table", on, pos=pos, axis=axis, inv_freq=inv_freq, scale=scale)
    return got["cos"], got["sin"]


def embed(table: NDArray[np.uint8], dtype: str, dim: int, ids: I32, **on: Any) -> F32:
    y: F32 = run("embed", on, table=table, type=dtype, dim=dim, ids=ids)["y"]
    return y


def linear(
    w: NDArray[np.uint8], dtype: str, n_out: int, n_in: int, x: F32, add: F32 | None = None,
    activations: str = "int8", **on: Any,
) -> F32:  # fmt: skip
    """x w^T (+ add), with w [n_out, n_in] as the bytes of its blocks. On a device `add` aliases y, like a residual."""
    in_place = "add" if add is not None and "pack" in on else None
    y: F32 = run("linear", on, w=w, type=dtype, n_out=n_out, n_in=n_in, x=x, add=add, activations=activations,
                 y=in_place)["y"]  # fmt: skip
    return y


def route_experts(logits: F32, k: int, is_normalized: bool, **on: Any) -> tuple[I32, F32]:
    """(experts [rows, k], weights [rows, k])"""
    got = run("route_experts", on, logits=logits, k=k, is_normalized=int(is_normalized))
    return got["experts"], got["weights"]


def expert_linear(
    w: NDArray[np.uint8], dtype: str, n_experts: int, n_out: int, x: F32, experts: I32, first_row: int = 0,
    expert_rows: int | None = None, activations: str = "int8", **on: Any
) -> F32:  # fmt: skip
    """y [rows, k, n_out]. x: [rows, n_in], which the choices of a row share, or [rows, k, n_in]."""
    rows, k = experts.shape
    flat = np.ascontiguousarray(x.reshape(-1, x.shape[-1]))
    y: F32 = run("expert_linear", on, w=w, type=dtype, rows=rows, k=k, n_experts=n_experts, n_in=x.shape[-1],
                 n_out=n_out, expert_rows=n_out if expert_rows is None else expert_rows, first_row=first_row,
                 x_per_row=int(x.ndim == 2), activations=activations, x=flat, experts=experts)["y"]  # fmt: skip
    return y


def combine_experts(
    x: F32, weights: F32, shared: F32 | None = None, shared_gate: F32 | None = None, add: F32 | None = None, **on: Any
) -> F32:
    y: F32 = run("combine_experts", on, x=x, weights=weights, shared=shared, shared_gate=shared_gate, add=add)["y"]
    return y


def copy_rows(x: F32, y: F32, column: int, first: int | None = None, **on: Any) -> F32:
    """y with the rows of x copied to the columns from `column` on; with `first`, y is a ring and the copy starts at row
    `first`."""
    copied: F32 = y.copy()
    columns = copied[:, column : column + x.shape[1]]
    columns[:] = run("copy_rows", on, x=x, y=columns, first=first)["y"]
    return copied


def previous_row(
    x: F32, history: F32, pending: F32, accepted: I32 | None = None, parent: I32 | None = None, **on: Any
) -> tuple[F32, F32, F32]:
    """y and the state after it: history, pending."""
    got = run("previous_row", on, x=x, history=history, pending=pending, parent=parent, **_accepted(accepted))
    return got["y"], got["history"], got["pending"]


def top_tokens(logits: F32, k: int, scale: float = 1.0, softcap: float = 0.0, **on: Any) -> tuple[I32, F32]:
    """[rows, k]: the ids and log probabilities of the likeliest tokens."""
    got = run("top_tokens", on, logits=logits, k=k, scale=scale, softcap=softcap)
    return got["ids"], got["logprobs"]


def block_conv(x: F32, base: F32, kernels: F32, group: int, add: F32 | None = None, **on: Any) -> F32:
    """On a device `add` aliases y, like a residual."""
    in_place = "add" if add is not None and "pack" in on else None
    y: F32 = run("block_conv", on, x=x, base=base, kernels=kernels, group=group, add=add, y=in_place)["y"]
    return y


def select_candidates(
    hidden: F32, predecessors: NDArray[np.uint8], successors: NDArray[np.uint8], dtype: str, root: int, ids: I32,
    logprobs: F32, **on: Any,
) -> tuple[I32, F32]:  # fmt: skip
    """[rows, k]: ids and log probabilities, ordered by score. Tables are the bytes of their blocks."""
    got = run("select_candidates", on, hidden=hidden, predecessors=predecessors, successors=successors, type=dtype,
              root=root, ids=ids, logprobs=logprobs)  # fmt: skip
    return got["ids"], got["logprobs"]


def grow_tree(ids: I32, logprobs: F32, root: I32, n_past: I32, max_rows: int, rows: int, **on: Any) -> dict[str, Array]:
    """The fields of each sequence's draft tree, [sequences, max_rows], and positions [sequences, 3, rows]."""
    return run("grow_tree", on, ids=ids, logprobs=logprobs, root=root, n_past=n_past, max_rows=max_rows, rows=rows)


def kv_append(
    k: F32, v: F32, k_pages: Array, v_pages: Array, k_type: str, v_type: str, page_table: I32, n_past: int, **on: Any
) -> tuple[Array, Array]:
    """The pages of K and of V after the append."""
    cache = _cache(k_pages, v_pages, k_type, v_type, page_table, n_past, k.shape[2])
    got = run("kv_append", on, k=k, v=v, **cache)
    return got["k_pages"], got["v_pages"]


def kv_move(
    k_pages: Array, v_pages: Array, k_type: str, v_type: str, page_table: I32, path: I32, n_past: int,
    head_dim: int | None = None, **on: Any,
) -> tuple[Array, Array]:  # fmt: skip
    """The pages of K and of V after the move. The shape of unpacked pages gives head_dim."""
    cache = _cache(k_pages, v_pages, k_type, v_type, page_table, n_past, head_dim or k_pages.shape[3])
    got = run("kv_move", on, **cache, **_accepted(path))
    return got["k_pages"], got["v_pages"]


def attention_prepare(
    u: F32, k: F32, v: F32, q_norm: F32 | None, k_norm: F32 | None, cos: F32, sin: F32, k_pages: Array, v_pages: Array,
    k_type: str, v_type: str, page_table: I32, n_past: int, eps: float, pairs: str = "halves", **on: Any,
) -> tuple[F32, Array, Array]:  # fmt: skip
    """q, and the pages of K and of V. The queries are the first head_dim values of each head of u. q is computed in
    place, as in the engine, if there are no norms and a head of u has only head_dim values."""
    dim = k.shape[2]
    in_place = "u" if q_norm is None and u.shape[2] == dim else None
    cache = _cache(k_pages, v_pages, k_type, v_type, page_table, n_past, dim)
    got = run("attention_prepare", on, u=u[:, :, :dim], k=k, v=v, q_norm=q_norm, k_norm=k_norm, cos=cos, sin=sin,
              q=in_place, eps=eps, pairs=pairs, **cache)  # fmt: skip
    return got["q"], got["k_pages"], got["v_pages"]


def attention(
    q: F32, k_pages: Array, v_pages: Array, k_type: str, v_type: str, page_table: I32, n_past: int, scale: float,
    gate: F32 | None = None, ancestors: Masks | None = None, parent: I32 | None = None, bits: int | None = None,
    first_slot: int = 0, window: int = 0, blocks: I32 | None = None, **on: Any,
) -> Any:  # fmt: skip
    """The gate is the last head_dim values of each head of `gate`. With bits 8 or 16, a device also returns the bytes
    of the quantised rows."""
    own_gate = None if gate is None else gate[:, :, gate.shape[2] - q.shape[2] :]
    cache = _cache(k_pages, v_pages, k_type, v_type, page_table, n_past, q.shape[2])
    got = run("attention", on, q=q, gate=own_gate, parent=parent, ancestors=ancestors, scale=scale, rounded=bits,
              first_slot=first_slot, window=window, blocks=blocks, **cache)  # fmt: skip
    return got["o"] if bits is None else (got["o"], got["rounded"])


def key_scores(
    q: F32, k_pages: Array, k_type: str, page_table: I32, n_past: int, scale: float, scores: F32, first_row: int = 0,
    **on: Any,
) -> F32:  # fmt: skip
    """[rows, stride]: the maximum of the scores and the rows' attention weights over all heads."""
    cache = _cache(k_pages, k_pages, k_type, k_type, page_table, n_past, q.shape[2])
    got = run("key_scores", on, q=q, scale=scale, scores=scores, first_row=first_row, **cache)
    return np.asarray(got["scores"])


def key_means(
    means: F32, k_pages: Array, k_type: str, page_table: I32, n_past: int, rows: int, **on: Any
) -> F32:  # fmt: skip
    """means [kv_heads, dim, max_blocks], updated for the blocks that `rows` rows after n_past complete."""
    cache = _cache(k_pages, k_pages, k_type, k_type, page_table, n_past, means.shape[1])
    return np.asarray(run("key_means", on, means=means, rows=rows, **cache)["means"])


def select_blocks(
    q: F32, means: F32, n_past: int, scale: float, alpha: float, n_query_blocks: int, **on: Any
) -> I32:  # fmt: skip
    """[n_query_blocks, kv_heads, 2 + max_blocks]: per query block the length of its list of key blocks, then the
    list."""
    blocks = np.zeros((n_query_blocks, means.shape[0], 2 + means.shape[2]), np.int32)
    got = run("select_blocks", on, q=q, means=means, blocks=blocks, n_past=np.array([n_past], np.int32), scale=scale,
              alpha=alpha)  # fmt: skip
    return np.asarray(got["blocks"])


def causal_conv(
    x: F32, w: F32, history: F32, pending: F32, accepted: I32 | None = None, parent: I32 | None = None, **on: Any
) -> tuple[F32, F32, F32]:
    """y and the state after it: history, pending."""
    got = run("causal_conv", on, x=x, w=w, history=history, pending=pending, parent=parent, **_accepted(accepted))
    return got["y"], got["history"], got["pending"]


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


def delta_inputs(
    x: F32, w: F32, history: F32, pending: F32, g: F32, beta: F32, a_neg: F32, dt_bias: F32, n_k_heads: int, dk: int,
    eps: float, accepted: I32 | None = None, parent: I32 | None = None, **on: Any,
) -> tuple[F32, F32, F32, F32, F32]:  # fmt: skip
    """y with q and k prepared, and the state after it: history, pending; then g and beta."""
    got = run("delta_inputs", on, x=x, w=w, history=history, pending=pending, g=g, beta=beta, a_neg=a_neg,
              dt_bias=dt_bias, n_k_heads=n_k_heads, dk=dk, eps=eps, parent=parent, **_accepted(accepted))  # fmt: skip
    return got["y"], got["history"], got["pending"], got["g"], got["beta"]


def gated_delta(
    qkv: F32, g: F32, beta: F32, S: F32, k_pending: F32, cs_pending: F32, delta: F32, buffer: int = 0,
    accepted: I32 | None = None, parent: I32 | None = None, ancestors: Masks | None = None, order: str = "grouped",
    **on: Any,
) -> tuple[F32, F32, F32, F32, F32]:  # fmt: skip
    """o and the state after it: S, k_pending, cs_pending, delta. A row of qkv holds prepared q, prepared k, and v.
    `buffer` selects the pending buffer that holds the previous append's rows.

    cs_pending is the log decay summed along the path, as on devices. The CPU stores each row's own log decay.
    """
    n_k_heads, keys = k_pending.shape[2], k_pending.shape[2] * k_pending.shape[3]
    q, k, v = np.split(qkv, (keys, 2 * keys), axis=1)
    if "pack" not in on:
        cs_pending = cs_pending.copy()
        if accepted is not None and len(accepted):
            sums = cs_pending[buffer][accepted]
            cs_pending[buffer][accepted[1:]] -= sums[:-1]
    got = run("gated_delta", on, q=_heads(q, n_k_heads), k=_heads(k, n_k_heads), v=_heads(v, delta.shape[1]), g=g,
              beta=beta, parent=parent, ancestors=ancestors, row_stride=qkv.shape[1],
              **_state(S, k_pending, cs_pending, delta, buffer, order), **_accepted(accepted))  # fmt: skip
    o, *state = got["o"], *_state_after(got)
    if "pack" not in on:
        sums = state[2][1 - buffer]
        for row in range(len(g)):
            before = row - 1 if parent is None else parent[row]
            if before >= 0:
                sums[row] += sums[before]
    return o, *state


def delta_net(
    x: F32, w: F32, history: F32, pending: F32, g: F32, beta: F32, a_neg: F32, dt_bias: F32, S: F32, k_pending: F32,
    cs_pending: F32, delta: F32, buffer: int, z: F32, norm_w: F32, eps: float, last: NDArray[np.uint8], last_type: str,
    n_last: int, accepted: I32 | None, parent: I32 | None, ancestors: Masks | None, order: str, *,
    pack: _engine.gpu.Pack,
) -> tuple[Any, ...]:  # fmt: skip
    """All ops between a layer's projections, as the engine sends them.

    Returns the product of `last` with the normed o, the launch count of each kernel, and the new state: history,
    pending, S, k_pending, cs_pending, delta.
    """
    product = {"w": last, "type": last_type, "n_out": n_last, "n_in": z[0].size, "rows": len(x), "activations": "int8"}
    got, of_last, started = _kernels.gpu_ops.delta_net(
        pack, product, x=x, w=w, history=history, pending=pending, g=g, beta=beta, a_neg=a_neg, dt_bias=dt_bias,
        n_k_heads=k_pending.shape[2], dk=k_pending.shape[3], z=z.reshape(len(x), *delta.shape[1:]), norm_w=norm_w,
        eps=eps, parent=parent, ancestors=ancestors,
        **_state(S, k_pending, cs_pending, delta, buffer, order), **_accepted(accepted))  # fmt: skip
    return of_last["y"], started, got["history"], got["pending"], *_state_after(got)


def linear_group(
    weights: list[NDArray[np.uint8]], dtypes: list[str], n_out: list[int], n_in: int, x: F32,
    add: list[F32] | None = None, activations: str = "int8", *, pack: _engine.gpu.Pack,
) -> list[F32]:  # fmt: skip
    """Up to four GEMVs that share x; one launch per weight type."""
    products = _products(weights, dtypes, n_out, n_in, x, add, activations)
    return [got["y"] for got in _kernels.gpu_ops.linear_group(pack, products)]


def matmul_group(
    weights: list[NDArray[np.uint8]], dtypes: list[str], n_out: list[int], n_in: int, x: F32,
    add: list[F32] | None = None, activations: str = "int8", *, pack: _engine.gpu.Pack,
) -> list[F32]:  # fmt: skip
    """Up to four GEMMs that share x, on matrix units; one launch per weight type."""
    products = _products(weights, dtypes, n_out, n_in, x, add, activations)
    return [got["y"] for got in _kernels.gpu_ops.matmul_group(pack, products)]


def matmul(
    w: NDArray[np.uint8], dtype: str, n_out: int, n_in: int, x: F32, add: F32 | None = None,
    activations: str = "int8", *, pack: _engine.gpu.Pack,
) -> F32:  # fmt: skip
    """A GEMM on matrix units."""
    adds = None if add is None else [add]
    return matmul_group([w], [dtype], [n_out], n_in, x, adds, activations, pack=pack)[0]


def matmul_chain(
    weights: list[NDArray[np.uint8]], dtype: str, n_out: int, n_in: int, x: F32, add: F32 | None, norm: F32 | None,
    eps: float, last: NDArray[np.uint8], last_dtype: str, n_last: int, *, pack: _engine.gpu.Pack,
) -> tuple[F32, F32]:  # fmt: skip
    """Fused skinny GEMMs. Returns (y = x w^T + add, product of `last` with the norm of y), or with `norm` None and two
    weights (NaN, product of `last` with silu(x w0^T) * x w1^T)."""
    n, rows = len(weights), len(x)
    adds = None if add is None else n * [add]
    products = _products(weights, n * [dtype], n * [n_out], n_in, x, adds, "int8")
    of_norm = {"w": norm, "eps": eps, "heads": 1, "row_stride": n_out}
    between = {"rows": rows, "dim": n_out, **({} if norm is None else of_norm)}
    reader = {"w": last, "type": last_dtype, "n_out": n_last, "n_in": n_out, "rows": rows, "activations": "int8"}
    of_products, of_last = _kernels.gpu_ops.matmul_chain(pack, products, between, reader)
    return of_products[0]["y"], of_last["y"]


def megakernel(
    x: F32, norm: F32, eps: float, w: NDArray[np.uint8], dtype: str, n_out: int, *, pack: _engine.gpu.Pack,
    **options: Any,
) -> F32:  # fmt: skip
    """Logits of a norm and a GEMV, fused into one phase of a megakernel."""
    of_norm = {"x": x.reshape(1, 1, -1), "w": norm, "eps": eps}
    product = {"w": w, "type": dtype, "n_out": n_out, "n_in": len(x), "rows": 1, "activations": "int8"}
    logits: F32 = _kernels.gpu_ops.megakernel(pack, of_norm, product, **options)["y"][0]
    return logits


def _products(
    weights: list[NDArray[np.uint8]], dtypes: list[str], n_out: list[int], n_in: int, x: F32, add: list[F32] | None,
    activations: str,
) -> list[dict[str, Any]]:  # fmt: skip
    """The fields of each product. `add` aliases y, like a residual."""
    shared = {"n_in": n_in, "x": x, "activations": activations}
    each = [{**shared, "w": w, "type": d, "n_out": n} for w, d, n in zip(weights, dtypes, n_out, strict=True)]
    if add is None:
        return each
    return [{**product, "add": a, "y": "add"} for product, a in zip(each, add, strict=True)]


def _cache(
    k_pages: Array, v_pages: Array, k_type: str, v_type: str, page_table: I32, n_past: int, head_dim: int
) -> dict[str, Any]:
    """The fields of a KvLayer. Pages: [n, n_kv_heads, 64, head_dim] of float32 or of 16-bit patterns; of other types
    [n, n_kv_heads, 64, bytes of a slot] of bytes."""
    return {
        "k_pages": k_pages,
        "v_pages": v_pages,
        "k_type": k_type,
        "v_type": v_type,
        "page_table": page_table,
        "n_past": int(n_past),
        "head_dim": int(head_dim),
    }


def _accepted(path: I32 | None) -> dict[str, Any]:
    return {} if path is None else {"accepted": path, "n_accepted": len(path)}


def _heads(rows: F32, heads: int) -> F32:
    """[rows, heads, dim], a view."""
    row, value = rows.strides
    dim = rows.shape[1] // heads
    return np.lib.stride_tricks.as_strided(rows, (len(rows), heads, dim), (row, dim * value, value))


def _state(S: F32, k_pending: F32, cs_pending: F32, delta: F32, buffer: int, order: str) -> dict[str, Any]:
    """The fields of a recurrent layer's state. Passes the opposite `buffer` with flip = 1, which selects the same
    buffer."""
    k, cs = (
        {f"{name}_pending_{i}": both[i] for i in range(2)} for name, both in (("k", k_pending), ("cs", cs_pending))
    )
    return {**k, **cs, "S": S, "delta": delta, "buffer": 1 - buffer, "flip": 1, "order": order}


def _state_after(got: dict[str, Any]) -> tuple[F32, F32, F32, F32]:
    k, cs = (np.stack([got[f"{name}_pending_{i}"] for i in range(2)]) for name in ("k", "cs"))
    return got["S"], k, cs, got["delta"]
