"""The choice between the megakernel and a graph by the time of a token."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gpu_packs
import pytest
from engines import open_engine
from lucebox import _engine
from lucebox.cache import step_costs_folder
from lucebox.models.decode_path import settle_decode_path
from reference.gguf_files import Shape, write_model


def test_a_later_start_takes_the_path_of_the_first(
    pack_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest: dict[str, Any] = gpu_packs.manifest_of(pack_folder)
    manifest["tuning"] |= {"megakernel_max_mib": 64, "megakernel_max_kv_mib": 64}  # the megakernel is the rule
    pack = gpu_packs.load(pack_folder, manifest)
    monkeypatch.setenv("LUCEBOX_CACHE", str(tmp_path))
    shape = Shape("llama", n_layers=1, hidden=256, ffn=256, n_heads=4, n_kv_heads=2, head_dim=64, vocab=64)
    path = write_model(tmp_path / "model.gguf", shape)

    def start(decode_path: str = "auto", kernels: str = "pack") -> tuple[str, str]:
        """The reason, and the first word of a session's path."""
        engine = open_engine(path, pack=pack, context=64, decode_path=decode_path)
        reason = settle_decode_path(engine, "chip", kernels)
        session = _engine.Session(engine)
        assert engine.options["decode_path"] == ("graph" if reason else decode_path)
        return reason, session.decode_path.partition("_")[0].partition(",")[0]

    start()
    (file,) = step_costs_folder().iterdir()
    document = json.loads(file.read_text())
    assert document["megakernel_ms"] > 0 and document["graph_ms"] > 0
    file.write_text(json.dumps(document | {"megakernel_ms": 6.0, "graph_ms": 5.9}))
    assert start() == ("", "megakernel")
    file.write_text(json.dumps(document | {"megakernel_ms": 6.0, "graph_ms": 5.0}))
    reason, way = start()
    assert reason == "decoded by a graph: 5.00 ms a token, 6.00 by the megakernel" and way != "megakernel"
    assert start("megakernel") == ("", "megakernel")
    for damaged in ('{"key": {}}', "{", json.dumps(document | {"graph_ms": -1.0})):
        file.write_text(damaged)
        start()
        assert json.loads(file.read_text())["graph_ms"] > 0
    start(kernels="pack of other constants")
    assert len(list(step_costs_folder().iterdir())) == 2
