"""Assistants of Gemma 4: golden drafts of transformers, and a pair whose drafts are accepted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from lucebox import _engine, _kernels
from lucebox.selftest.inputs import ancestors_of
from numpy.typing import NDArray
from reference import checkpoints, convert

# gemma4_assistant_NAME drafts for gemma4_NAME: of one, full layers make keys and values by one matrix; of the other,
# later layers share keys and values of earlier ones, and the assistant has centroids. Drafts of transformers 5.24's
# Gemma4AssistantForCausalLM below prompts of several lengths, computed in fp64.
NAMES = ("a", "b")


def assistant(data: Path, name: str, gguf: Path | None) -> Path:
    """The folder of safetensors, or a GGUF file made of it."""
    folder = data / "tiny" / f"gemma4_assistant_{name}"
    return folder if gguf is None else convert.to_gguf(folder, gguf)


def check_golden(engine: _engine.Engine, arrays: Mapping[str, NDArray[Any]], tolerance: float, longest: int) -> None:
    """Drafts below the prompts of up to `longest` tokens. The newest tokens of a prompt come by the path of a tree with
    other branches."""
    drafting, ids = _kernels.Drafting(engine), arrays["ids"]
    rng = np.random.default_rng(0)
    for n, want_hidden, want_logits in zip(arrays["lengths"], arrays["hidden"], arrays["logits"], strict=True):
        if n > longest:
            break
        append_chain(drafting, ids[drafting.n_tokens : max(n - 5, drafting.n_tokens)])
        append_path(drafting, ids[drafting.n_tokens : n], rng)
        got, logprobs, hidden = drafting.propose(int(ids[n]), len(want_hidden))
        assert np.abs(hidden - want_hidden).max() < tolerance * np.abs(want_hidden).max()
        shifted = want_logits - want_logits.max(axis=1, keepdims=True)
        want = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
        assert np.array_equal(got[:, 0], want.argmax(axis=1))
        assert np.abs(logprobs - np.take_along_axis(want, got, axis=1)).max() < tolerance
        assert np.abs(logprobs + np.sort(-want, axis=1)[:, : got.shape[1]]).max() < tolerance


def append_chain(drafting: _kernels.Drafting, ids: NDArray[np.int32]) -> None:
    if len(ids) == 0:
        return
    positions = np.tile(np.arange(drafting.n_tokens, drafting.n_tokens + len(ids), dtype=np.int32), (3, 1))
    drafting.append(ids, positions, np.zeros(0, np.int32), np.zeros(0, np.uint64))
    drafting.commit(list(range(len(ids))))


def append_path(drafting: _kernels.Drafting, ids: NDArray[np.int32], rng: np.random.Generator) -> None:
    """Every token after a sibling that is dropped."""
    rows = np.stack([rng.integers(0, 100, len(ids), dtype=np.int32), ids], axis=1).reshape(-1)
    parents = np.array([-1 if j < 2 else j // 2 * 2 - 1 for j in range(len(rows))], np.int32)
    depths = drafting.n_tokens + np.arange(len(rows), dtype=np.int32) // 2
    drafting.append(rows, np.tile(depths, (3, 1)), parents, ancestors_of(parents))
    drafting.commit(list(range(1, len(rows), 2)))


def write_accepting_pair(data: Path, to: Path, seed: int = 0) -> tuple[Path, Path]:
    """A target and an assistant that agree on most tokens: their layers hardly change a token's embedding, and both
    heads answer a token by the next one in a random order of the vocabulary."""
    rng = np.random.default_rng(seed)
    config, tensors = checkpoint(data, "gemma4_a")
    table = tensors["model.embed_tokens.weight"]
    head = table[rng.permutation(len(table))]
    target = checkpoints.write(
        to / "target", config | {"tie_word_embeddings": False}, quiet(tensors) | {"lm_head.weight": head}
    )
    config, tensors = checkpoint(data, "gemma4_assistant_a")
    narrow, hidden = config["text_config"]["hidden_size"], table.shape[1]
    config["text_config"]["hidden_size"] = hidden
    drafting = {
        name: rng.normal(0, 0.1, [hidden if n == narrow else n for n in x.shape]).astype(np.float32)
        for name, x in tensors.items()
    }
    drafting |= {name: np.ones_like(x) for name, x in drafting.items() if x.ndim == 1}
    drafting["pre_projection.weight"] = np.eye(hidden, 2 * hidden, dtype=np.float32)
    drafting["model.embed_tokens.weight"] = head
    return target, checkpoints.write(to / "assistant", config, quiet(drafting))


def checkpoint(data: Path, name: str) -> tuple[dict[str, Any], dict[str, NDArray[np.float32]]]:
    folder = data / "tiny" / name
    return json.loads((folder / "config.json").read_text()), convert.values_of(folder / "model.safetensors")


def quiet(tensors: dict[str, NDArray[np.float32]]) -> dict[str, NDArray[np.float32]]:
    """Small norms of the branches, so that a layer adds little to the residual stream."""
    return {name: 0.01 * x if ".post_" in name and "layernorm" in name else x for name, x in tensors.items()}
