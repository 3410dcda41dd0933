"""The prediction block (MTP) of Qwen3.5 in fp64, over the reference of its target."""

from __future__ import annotations

import copy

import numpy as np
from numpy.typing import ArrayLike, NDArray
from reference.decoder import F64, Decoder, LayerState, rms_norm


class Mtp:
    """Row j belongs to token j and reads the target's final normed row of token j - 1; row 0 does not exist."""

    def __init__(self, target: Decoder) -> None:
        self.target, self.layer = target, target.n_layers
        empty = np.zeros((0, target.n_kv_heads, target.head_dim))
        self.state: LayerState = {"k": empty, "v": empty}
        self.ids: list[int] = []
        self.hidden: F64 = np.zeros((0, target.hidden))

    def norm(self, name: str, x: F64) -> F64:
        return rms_norm(x, self.target.w[f"blk.{self.layer}.{name}.weight"], self.target.eps)

    def own(self, name: str, *others: str) -> F64:
        """A tensor that the block may share with the target."""
        w = self.target.w
        return next(w[full] for full in (f"blk.{self.layer}.nextn.{name}.weight", *others) if full in w)

    def rows(self, ids: ArrayLike, before: F64, first: int, state: LayerState) -> F64:
        """Final normed rows of ids, at positions from `first` on; before: the hidden rows of the tokens before them."""
        w, at = self.target.w, f"blk.{self.layer}."
        tokens = np.asarray(ids)
        e = self.norm("nextn.enorm", self.own("embed_tokens", "token_embd.weight")[tokens])
        x = np.concatenate([e, self.norm("nextn.hnorm", before)], axis=1) @ w[at + "nextn.eh_proj.weight"].T
        positions = np.arange(first, first + len(tokens))
        cos, sin = self.target.cos_sin(np.stack([positions] * 3))
        x = x + self.target.attention(self.layer, self.norm("attn_norm", x), state, cos, sin)
        y = self.norm("post_attention_norm", x)
        x = x + self.target.feed_forward(self.layer, y)
        return rms_norm(x, self.own("shared_head_norm", "output_norm.weight"), self.target.eps)

    def commit(self, ids: NDArray[np.int32], hidden: F64) -> None:
        """hidden [rows, hidden]: the target's final normed rows of ids."""
        first = len(self.ids)
        before = np.concatenate([self.hidden, hidden])[max(first - 1, 0) : first + len(ids) - 1]
        fresh = ids if first > 0 else ids[1:]
        if len(fresh):
            self.rows(fresh, before, max(first, 1), self.state)
        self.ids += ids.tolist()
        self.hidden = np.concatenate([self.hidden, hidden])

    def propose(self, root: int, depth: int) -> tuple[F64, F64]:
        """Greedy: (final normed rows [depth, hidden], their logits [depth, vocab])."""
        state, before, token = copy.deepcopy(self.state), self.hidden[-1:], root
        head = self.own("shared_head_head", "output.weight", "token_embd.weight")
        hidden, logits = [], []
        for d in range(depth):
            before = self.rows([token], before, len(self.ids) + d, state)
            hidden.append(before[0])
            logits.append(before[0] @ head.T)
            token = int(np.argmax(logits[-1]))
        return np.array(hidden), np.array(logits)
