"""A whole model's scores of a prompt on a device, compared with the CPU's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gpu_packs
import numpy as np
import pytest
from engines import open_engine, open_scorer, random_ids
from lucebox import _engine
from lucebox.errors import UnsupportedError
from reference.gguf_files import Shape, write_model
from tolerances import check

SMALL = {"hidden": 64, "ffn": 64, "n_heads": 2, "n_kv_heads": 1, "head_dim": 64}


def test_a_hybrid(pack: _engine.gpu.Pack, tmp_path: Path) -> None:
    """The last of the layers has attention alone; chunks of 64 cut the scored rows."""
    shape = Shape("qwen35", n_layers=2, recurrent=(True, False), d_state=64, **SMALL)
    path, ids = write_model(tmp_path / "hybrid.gguf", shape), random_ids(67, shape.vocab)
    options = {"kv": "f32"}
    want = open_scorer(path, **options).score(ids)
    got = open_scorer(path, pack=pack, **options).score(ids)
    check("key_scores_model_device", got, want, want.max())


@pytest.mark.slow  # 1100 tokens: the window alone is 512
def test_sparse_attention(pack: _engine.gpu.Pack, tmp_path: Path) -> None:
    """The CPU selects the same blocks; dense attention scores otherwise."""
    shape = Shape("qwen3", n_layers=2, **SMALL)
    path, ids = write_model(tmp_path / "plain.gguf", shape), random_ids(1100, shape.vocab)
    options = {"kv": "f16", "context": 1152, "prefill_chunk": 512}
    want = open_scorer(path, prefill_sparse_alpha=1.0, **options).score(ids, [1])
    got = open_scorer(path, pack=pack, prefill_sparse_alpha=1.0, **options).score(ids, [1])
    check("key_scores_model_f16", got, want, want.max())
    dense = open_scorer(path, **options).score(ids, [1])
    assert np.abs(want - dense).max() > 1e-3 * want.max()


@pytest.mark.slow  # likewise
def test_a_prompt_with_sparse_attention(pack: _engine.gpu.Pack, tmp_path: Path) -> None:
    """Logits after two whole chunks and a partial one are closer to the CPU's than to dense attention's."""
    shape = Shape("qwen3", n_layers=2, **SMALL)
    path, ids = write_model(tmp_path / "plain.gguf", shape), random_ids(1100, shape.vocab)
    options = {"kv": "f16", "context": 1152, "prefill_chunk": 512}
    logits = []
    for engine in (
        open_engine(path, sparse_prefill=1.0, **options),
        open_engine(path, pack=pack, sparse_prefill=1.0, **options),
        open_engine(path, **options),
    ):
        session = _engine.Session(engine)
        session.sync(ids)
        logits.append(session.logits())
    want, got, dense = logits
    assert np.abs(got - want).max() < 0.2 * np.abs(dense - want).max()


@pytest.mark.parametrize(
    ("option", "open_model"), [("sparse_prefill", open_engine), ("prefill_sparse_alpha", open_scorer)]
)
def test_sparse_attention_without_kernels(
    pack_folder: Path, tmp_path: Path, option: str, open_model: Callable[..., object]
) -> None:
    """Refused at load, as on AMD, by the option's name; so are heads that no kernel takes."""
    path = write_model(tmp_path / "plain.gguf", Shape("qwen3", n_layers=1, **SMALL))
    options = {"kv": "f16", option: 0.5}
    manifest = gpu_packs.manifest_without(pack_folder, "attention_sparse_.*|select_blocks_.*|key_means_kernel")
    target = manifest["target"]
    with pytest.raises(UnsupportedError, match=rf"^{option} = 0.5: {target} \(.*\) has no kernels .* {option} = 0$"):
        open_model(path, pack=gpu_packs.load(pack_folder, manifest), **options)
    dense = gpu_packs.manifest_without(pack_folder, "attention_sparse_.*")
    with pytest.raises(UnsupportedError, match=rf"^{option} = 0.5: .* no kernels for 2 heads of 64 over 1 KV heads"):
        open_model(path, pack=gpu_packs.load(pack_folder, dense), **options)


def test_sparse_attention_takes_f16(pack: _engine.gpu.Pack, tmp_path: Path) -> None:
    path = write_model(tmp_path / "plain.gguf", Shape("qwen3", n_layers=1, **SMALL))
    with pytest.raises(UnsupportedError, match="takes kv = f16"):
        open_scorer(path, pack=pack, prefill_sparse_alpha=0.5, kv="q8_0")
    with pytest.raises(UnsupportedError, match="takes kv = f16"):
        open_engine(path, pack=pack, sparse_prefill=0.5, kv="f16/q8_0")
