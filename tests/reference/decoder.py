"""The model families in fp64, straight from a GGUF file: the definition that the engine is tested against.

Written for clarity: one token at a time inside the recurrence, state kept by the caller. Each plausible mistake of an
implementation can be switched on by name (see MUTATIONS), so that a test can show that it would be seen.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize
from numpy.typing import ArrayLike, NDArray
from reference import rope

F64 = NDArray[np.float64]
LayerState = dict[str, F64]

L2_EPS = 1e-6

# Facts of Qwen3.5 that an implementation might get wrong.
MUTATIONS = (
    "value heads grouped instead of tiled",
    "+1 again on block norms",
    "+1 on the gated norm",
    "query and gate as halves of the row",
    "rope over the whole head",
    "rope on the other pairs",
    "delta net query unscaled",
    "l2 eps on the mean",
    "l2 eps 1e-12",
    "state read before the write",
    "prediction before the decay",
    "beta not on the prediction",
    "conv taps reversed",
    "silu attention gate",
    "gate before the gated norm",
    "sigmoid in the gated norm",
    "state rounded to bf16",
    "state rounded to f16",
)
# Not seen in the logits of ordinary weights: keys are far longer than the root of the eps.
INVISIBLE = frozenset({"l2 eps on the mean", "l2 eps 1e-12"})


def sigmoid(x: F64) -> F64:
    return 0.5 * (1 + np.tanh(0.5 * x))


def silu(x: F64) -> F64:
    return x * sigmoid(x)


def clamped_swiglu(gate: F64, up: F64, limit: float = 7) -> F64:
    """The activation of gpt-oss."""
    gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
    return gate * sigmoid(1.702 * gate) * (up + 1)


def rms_norm(x: F64, w: F64, eps: float) -> F64:
    """w as GGUF has it: the 1 of Qwen3.5's zero-centred norms is already added."""
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * w


def softmax(x: F64) -> F64:
    e: F64 = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def to_bf16(x: F64) -> F64:
    bits = x.astype(np.float32).view(np.uint32) + np.uint32(0x8000) & np.uint32(0xFFFF0000)
    return bits.view(np.float32).astype(np.float64)


def weights_of(reader: GGUFReader) -> dict[str, F64]:
    weights = {}
    for tensor in reader.tensors:
        shape = tuple(int(n) for n in reversed(tensor.shape))  # GGUF lists the contiguous dimension first
        weights[tensor.name] = dequantize(tensor.data, tensor.tensor_type).reshape(shape).astype(np.float64)
    return weights


@dataclass
class State:
    """What one sequence keeps; copy.deepcopy() is a snapshot."""

    n_tokens: int
    layers: list[LayerState]


class Decoder:
    """Weights and configuration of one file."""

    def __init__(self, path: Path | str, mutations: Iterable[str] = ()) -> None:
        self.mutations = frozenset(mutations)
        assert self.mutations <= set(MUTATIONS), self.mutations
        reader = GGUFReader(path)
        self._metadata = {name: field.contents() for name, field in reader.fields.items()}
        self.architecture: str = self._metadata["general.architecture"]
        self.family = self.architecture.removesuffix("moe")
        self.w = weights_of(reader)
        self._read_config()
        self._read_rope()
        self._mutate_weights()

    def _field(self, name: str, otherwise: Any = None) -> Any:
        return self._metadata.get(f"{self.architecture}.{name}", otherwise)

    def _read_config(self) -> None:
        self.n_layers = self._field("block_count") - self._field("nextn_predict_layers", 0)
        self.hidden = self._field("embedding_length")
        self.n_heads = self._field("attention.head_count")
        kv_heads = self._field("attention.head_count_kv", self.n_heads)
        self.n_kv_heads = max(kv_heads) if isinstance(kv_heads, list) else kv_heads
        self.head_dim = self._field("attention.key_length", self.hidden // self.n_heads)
        self.n_rot = self._field("rope.dimension_count", self.head_dim)
        self.eps = self._field("attention.layer_norm_rms_epsilon")
        self.theta = self._field("rope.freq_base", 10000.0)
        self.recurrent = [False] * self.n_layers
        self.sections: list[int] = []
        if self.family == "qwen35":
            every = self._field("full_attention_interval", 4)
            flags = self._field("attention.recurrent_layers", [(i + 1) % every != 0 for i in range(self.n_layers)])
            self.recurrent = flags[: self.n_layers]
            self.sections = self._field("rope.dimension_sections")[:3]
            self.n_taps = self._field("ssm.conv_kernel")
            self.d_state = self._field("ssm.state_size")
            self.n_k_heads = self._field("ssm.group_count")
            self.n_v_heads = self._field("ssm.time_step_rank")
        if "rope over the whole head" in self.mutations:
            self.n_rot, self.sections = self.head_dim, []

    def _mutate_weights(self) -> None:
        block_norms = ("attn_norm.weight", "post_attention_norm.weight", "output_norm.weight")
        for name in self.w:
            again = "+1 again on block norms" in self.mutations and name.endswith(block_norms)
            gated = "+1 on the gated norm" in self.mutations and name.endswith("ssm_norm.weight")
            if again or gated:
                self.w[name] = self.w[name] + 1

    # --- rope

    def _read_rope(self) -> None:
        """Sets frequencies, [n_rot / 2] radians a position, and the factor of cos and sin."""
        factor = self._field("rope.scaling.factor", 1.0) or 1.0  # llama.cpp: 0 is 1
        kind = self._field("rope.scaling.type", "linear")
        self.frequencies = rope.plain_frequencies(self.theta, self.n_rot)
        self.rope_scale = 1.0
        if kind == "linear":
            self.frequencies /= factor
        if kind == "yarn":
            original = self._field("rope.scaling.original_context_length", self._field("context_length"))
            self.frequencies = rope.yarn_frequencies(
                self.theta, self.n_rot, factor, original, truncate=self.family != "gpt-oss"
            )
            self.rope_scale = rope.yarn_scale(factor)
        self.frequencies = self.frequencies / self.w.get("rope_freqs.weight", np.float64(1))

    def cos_sin(self, positions: NDArray[np.int64]) -> tuple[F64, F64]:
        """positions [3, rows]: temporal, height, width; interleaved over the pairs where the family has sections."""
        axis = np.zeros(self.n_rot // 2, dtype=int)
        for i in range(len(axis)):
            if self.sections and i % 3 != 0 and i < 3 * self.sections[i % 3]:
                axis[i] = i % 3
        angle = positions[axis].T * self.frequencies
        return self.rope_scale * np.cos(angle), self.rope_scale * np.sin(angle)

    def rope(self, x: F64, cos: F64, sin: F64) -> F64:
        """x [rows, heads, head_dim]. The llama converter made pairs adjacent; elsewhere they lie half apart."""
        adjacent = (self.architecture == "llama") != ("rope on the other pairs" in self.mutations)
        half = self.n_rot // 2
        first = slice(0, self.n_rot, 2) if adjacent else slice(0, half)
        second = slice(1, self.n_rot, 2) if adjacent else slice(half, self.n_rot)
        a, b = x[..., first], x[..., second]
        c, s = cos[:, None], sin[:, None]
        out = x.copy()
        out[..., first], out[..., second] = a * c - b * s, b * c + a * s
        return out

    # --- state

    def new_state(self) -> State:
        layers: list[LayerState] = []
        for recurrent in self.recurrent:
            if recurrent:
                channels = self.d_state * (2 * self.n_k_heads + self.n_v_heads)
                layers.append(
                    {
                        "conv": np.zeros((self.n_taps - 1, channels)),  # inputs before the convolution
                        "S": np.zeros((self.n_v_heads, self.d_state, self.d_state)),  # [head, key, value]
                    }
                )
            else:
                empty = np.zeros((0, self.n_kv_heads, self.head_dim))
                layers.append({"k": empty, "v": empty})
        return State(0, layers)

    # --- mixers; x [rows, hidden]

    def attention(self, layer: int, x: F64, state: LayerState, cos: F64, sin: F64) -> F64:
        w = {name: self.w[f"blk.{layer}.attn_{name}.weight"] for name in ("q", "k", "v", "output")}
        rows, heads, kv_heads, dim = len(x), self.n_heads, self.n_kv_heads, self.head_dim
        b = {name: self.w.get(f"blk.{layer}.attn_{name}.bias", np.zeros(1)) for name in w}
        q, k, v = (x @ w[name].T + b[name] for name in ("q", "k", "v"))
        k, v = k.reshape(rows, kv_heads, dim), v.reshape(rows, kv_heads, dim)
        gate = None
        if self.family == "qwen35":
            if "query and gate as halves of the row" in self.mutations:
                q, gate = q[:, : heads * dim], q[:, heads * dim :]
            else:  # of each head: its query, then its gate
                u = q.reshape(rows, heads, 2, dim)
                q, gate = u[:, :, 0], u[:, :, 1].reshape(rows, heads * dim)
        q = q.reshape(rows, heads, dim)
        if f"blk.{layer}.attn_q_norm.weight" in self.w:
            q = rms_norm(q, self.w[f"blk.{layer}.attn_q_norm.weight"], self.eps)
            k = rms_norm(k, self.w[f"blk.{layer}.attn_k_norm.weight"], self.eps)
        q, k = self.rope(q, cos, sin), self.rope(k, cos, sin)
        past = len(state["k"])
        state["k"], state["v"] = np.concatenate([state["k"], k]), np.concatenate([state["v"], v])
        keys, values = (np.repeat(state[name], heads // kv_heads, axis=1) for name in ("k", "v"))
        scores = np.einsum("thd,shd->hts", q, keys) / np.sqrt(dim)
        distance = past + np.arange(rows)[:, None] - np.arange(past + rows)[None, :]
        hidden = distance < 0
        if self.family == "gpt-oss" and layer % 2 == 0:
            hidden |= distance >= self._field("attention.sliding_window")
        scores = np.where(hidden, -np.inf, scores)
        if (sinks := self.w.get(f"blk.{layer}.attn_sinks.weight")) is not None:
            scores = np.concatenate([scores, np.broadcast_to(sinks[:, None, None], (heads, rows, 1))], axis=2)
        o = np.einsum("hts,shd->thd", softmax(scores)[..., : past + rows], values).reshape(rows, heads * dim)
        if gate is not None:
            o = o * (silu(gate) if "silu attention gate" in self.mutations else sigmoid(gate))
        return o @ w["output"].T + b["output"]

    def delta_net(self, layer: int, x: F64, state: LayerState) -> F64:
        def w(name: str) -> F64:
            return self.w[f"blk.{layer}.{name}"]

        rows, dim, k_heads, v_heads = len(x), self.d_state, self.n_k_heads, self.n_v_heads
        z = (x @ w("attn_gate.weight").T).reshape(rows, v_heads, dim)
        beta = sigmoid(x @ w("ssm_beta.weight").T)
        log_decay = w("ssm_a") * np.logaddexp(0, x @ w("ssm_alpha.weight").T + w("ssm_dt.bias"))

        inputs = np.concatenate([state["conv"], x @ w("attn_qkv.weight").T])
        taps = w("ssm_conv1d.weight")  # [channels, n_taps]; the last is the token itself
        if "conv taps reversed" in self.mutations:
            taps = taps[:, ::-1]
        mixed = silu(sum((inputs[j : j + rows] * taps[:, j] for j in range(self.n_taps)), start=np.zeros(())))
        state["conv"] = inputs[rows:]

        q, k, v = np.split(mixed, [k_heads * dim, 2 * k_heads * dim], axis=1)
        q, k = self.l2_norm(q.reshape(rows, k_heads, dim)), self.l2_norm(k.reshape(rows, k_heads, dim))
        if "delta net query unscaled" not in self.mutations:
            q = q / np.sqrt(dim)
        grouped = "value heads grouped instead of tiled" in self.mutations
        key_head = np.arange(v_heads) // (v_heads // k_heads) if grouped else np.arange(v_heads) % k_heads
        o, state["S"] = self.recurrence(
            q[:, key_head], k[:, key_head], v.reshape(rows, v_heads, dim), log_decay, beta, state["S"]
        )

        gate = sigmoid(z) if "sigmoid in the gated norm" in self.mutations else silu(z)
        if "gate before the gated norm" in self.mutations:
            o = rms_norm(o * gate, w("ssm_norm.weight"), self.eps)
        else:
            o = rms_norm(o, w("ssm_norm.weight"), self.eps) * gate
        return o.reshape(rows, v_heads * dim) @ w("ssm_out.weight").T

    def l2_norm(self, x: F64) -> F64:
        eps = 1e-12 if "l2 eps 1e-12" in self.mutations else L2_EPS
        if "l2 eps on the mean" in self.mutations:
            eps *= x.shape[-1]
        return x / np.sqrt(np.sum(x * x, axis=-1, keepdims=True) + eps)

    def recurrence(self, q: F64, k: F64, v: F64, log_decay: F64, beta: F64, S: F64) -> tuple[F64, F64]:
        """S <- decay S; S <- S + k (beta (v - k S)); o = q S, per token and value head."""
        o = np.empty_like(v)
        for t in range(len(v)):
            if "state rounded to bf16" in self.mutations:
                S = to_bf16(S)
            if "state rounded to f16" in self.mutations:
                S = S.astype(np.float16).astype(np.float64)
            decayed = S * np.exp(log_decay[t])[:, None, None]
            predict_from = S if "prediction before the decay" in self.mutations else decayed
            predicted = np.einsum("hkv,hk->hv", predict_from, k[t])
            b = beta[t][:, None]
            delta = b * v[t] - predicted if "beta not on the prediction" in self.mutations else b * (v[t] - predicted)
            S = decayed + k[t][:, :, None] * delta[:, None, :]
            read_from = decayed if "state read before the write" in self.mutations else S
            o[t] = np.einsum("hkv,hk->hv", read_from, q[t])
        return o, S

    # --- feed-forward networks; x [rows, hidden]

    def feed_forward(self, layer: int, x: F64) -> F64:
        is_mixture = f"blk.{layer}.ffn_gate_inp.weight" in self.w
        return self.mixture(layer, x) if is_mixture else self.swiglu(layer, "", x)

    def swiglu(self, layer: int, suffix: str, x: F64) -> F64:
        gate, up, down = (self.w[f"blk.{layer}.ffn_{name}{suffix}.weight"] for name in ("gate", "up", "down"))
        return (silu(x @ gate.T) * (x @ up.T)) @ down.T

    def mixture(self, layer: int, x: F64) -> F64:
        blk = f"blk.{layer}.ffn_"
        is_clamped = self.family == "gpt-oss"
        logits = x @ self.w[blk + "gate_inp.weight"].T + self.w.get(blk + "gate_inp.bias", np.zeros(1))
        chosen = np.argsort(-logits, axis=1, kind="stable")[:, : self._field("expert_used_count")]
        weights = np.take_along_axis(softmax(logits), chosen, axis=1)
        weights /= weights.sum(axis=1, keepdims=True)
        joined, down = self.w.get(blk + "gate_up_exps.weight"), self.w[blk + "down_exps.weight"]
        if joined is None:
            joined = np.concatenate([self.w[blk + "gate_exps.weight"], self.w[blk + "up_exps.weight"]], axis=1)
        biases = np.zeros(joined.shape[:2])
        if is_clamped:
            halves = [
                self.w.get(f"{blk}{name}_exps.bias", np.zeros((len(joined), 0))) for name in ("gate_up", "gate", "up")
            ]
            biases = np.concatenate(halves, axis=1)
        down_bias = self.w.get(blk + "down_exps.bias", np.zeros((len(joined), 1)))
        y = np.zeros_like(x)
        for row, experts in enumerate(chosen):
            for expert, weight in zip(experts, weights[row], strict=True):
                gate, up = np.split(joined[expert] @ x[row] + biases[expert], 2)
                act = clamped_swiglu(gate, up) if is_clamped else silu(gate) * up
                y[row] += weight * (down[expert] @ act + down_bias[expert])
        shared_gate = self.w.get(blk + "gate_inp_shexp.weight")
        if shared_gate is not None:
            y += sigmoid(x @ shared_gate.reshape(-1, 1)) * self.swiglu(layer, "_shexp", x)
        return y

    # --- the whole model

    def step(
        self,
        ids: ArrayLike,
        state: State,
        positions: ArrayLike | None = None,
        taps: list[F64] | None = None,
        given: tuple[ArrayLike, F64] | None = None,
    ) -> F64:
        """Logits [rows, vocab] of ids after state, which moves on. taps receives the input of each layer and the
        final normed rows. given: indices of ids, and the rows that stand for their embeddings."""
        tokens = np.asarray(ids)
        text = np.arange(state.n_tokens, state.n_tokens + len(tokens))
        cos, sin = self.cos_sin(np.stack([text] * 3) if positions is None else np.asarray(positions))
        h = self.w["token_embd.weight"][tokens]
        if given is not None:
            h[np.asarray(given[0])] = given[1]
        mlp_norm = "post_attention_norm" if self.family in ("qwen35", "gpt-oss") else "ffn_norm"
        taps = [] if taps is None else taps
        for i, layer_state in enumerate(state.layers):
            taps.append(h)
            x = rms_norm(h, self.w[f"blk.{i}.attn_norm.weight"], self.eps)
            if self.recurrent[i]:
                h = h + self.delta_net(i, x, layer_state)
            else:
                h = h + self.attention(i, x, layer_state, cos, sin)
            x = rms_norm(h, self.w[f"blk.{i}.{mlp_norm}.weight"], self.eps)
            h = h + self.feed_forward(i, x)
        state.n_tokens += len(tokens)
        h = rms_norm(h, self.w["output_norm.weight"], self.eps)
        taps.append(h)
        return h @ self.w.get("output.weight", self.w["token_embd.weight"]).T

    def logits(self, ids: ArrayLike, positions: ArrayLike | None = None) -> F64:
        return self.step(ids, self.new_state(), positions)
