"""Two engines on one card: their plans, and the bits of both when threads drive them."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from engines import Decoder, open_engine, random_ids
from lucebox import _engine
from reference.gguf_files import Shape, write_model

SMALL = {"hidden": 64, "ffn": 64, "n_heads": 2, "n_kv_heads": 1, "head_dim": 64}
SHAPES = {"plain": Shape("qwen3", n_layers=1, **SMALL), "llama": Shape("llama", n_layers=1, **SMALL)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("shared")
    for name, shape in SHAPES.items():
        write_model(made / f"{name}.gguf", shape)
    return made


def test_a_plan_leaves_the_sessions_of_the_first(pack: _engine.gpu.Pack, pack_folder: Path, folder: Path) -> None:
    if pack_folder.name != "lucebox_sim":
        pytest.skip("other programs use a real card's memory")
    first = open_engine(folder / "plain.gguf", pack=pack, sessions=4)
    each = sum(size for _, size, _, per_session in first.plan["entries"] if per_session)
    with_four = open_engine(folder / "llama.gguf", pack=pack, sessions=1).plan["available_bytes"]
    sessions = [_engine.Session(first) for _ in range(4)]
    allocated = open_engine(folder / "llama.gguf", pack=pack, sessions=1).plan["available_bytes"]
    assert 0 <= with_four - allocated < each  # only the alignment of allocations differs
    sessions.clear()
    again = open_engine(folder / "llama.gguf", pack=pack, sessions=1).plan["available_bytes"]
    assert abs(again - with_four) < each


@pytest.mark.parametrize("path", ["graph", "megakernel"])
def test_threads_of_two_engines_take_turns(pack: _engine.gpu.Pack, folder: Path, path: str) -> None:
    prompts = {name: random_ids(9, shape.vocab).tolist() for name, shape in SHAPES.items()}

    def decoder(name: str) -> Decoder:
        return Decoder(open_engine(folder / f"{name}.gguf", pack=pack, decode_path=path), prompts[name])

    wanted = {name: decoder(name).decode(6) for name in SHAPES}
    decoders = {name: decoder(name) for name in SHAPES}
    got: dict[str, list[int]] = {}
    threads = [
        threading.Thread(target=lambda name=name: got.update({name: decoders[name].decode(6)}))  # type: ignore[misc]
        for name in SHAPES
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == wanted
