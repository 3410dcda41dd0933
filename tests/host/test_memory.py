"""The plan against what the process really uses, and the refusals that the plan gives."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from engines import open_engine
from lucebox.errors import InvalidRequestError, OutOfMemoryError
from reference.gguf_files import Shape, write_model
from tolerances import tolerance

# Opens, fills the whole context and decodes; prints private and resident bytes before and after.
PROGRAM = """
import json, re, sys
from pathlib import Path
import numpy as np
from lucebox import _engine

def status():
    rollup = Path("/proc/self/smaps_rollup").read_text()
    return {k: 1024 * int(re.search(k + r":\\s+(\\d+) kB", rollup)[1]) for k in ("Rss", "Anonymous")}

path, options = sys.argv[1], json.loads(sys.argv[2])
before = status()
engine = _engine.Engine.open(path, **options)
session = _engine.Session(engine)
ids = np.arange(engine.plan["context"], dtype=np.int32) % engine.info["vocab"]
session.sync(ids[:-1])
session.sync(ids)
plan = {"total": engine.plan["total_bytes"], "mapped": engine.plan["mapped_bytes"]}
print(json.dumps(plan | {"before": before, "after": status()}))
"""

linux_only = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


def measure(path: Path, **options: Any) -> dict[str, Any]:
    command = [sys.executable, "-c", PROGRAM, str(path), json.dumps(options)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


WIDE_CACHE = Shape("qwen3", n_layers=4, n_heads=8, n_kv_heads=8, head_dim=256, hidden=64, ffn=64)
WIDE_STATE = Shape(n_layers=3, recurrent=(True, True, False), n_k_heads=8, n_v_heads=24, d_state=256)


@linux_only
@pytest.mark.parametrize(
    ("shape", "options"),
    [
        (WIDE_CACHE, {"context": 1024, "kv": "f32", "threads": 1, "prefill_chunk": 64}),
        pytest.param(
            WIDE_CACHE, {"context": 2048, "kv": "f16", "threads": 2, "prefill_chunk": 128}, marks=pytest.mark.slow
        ),  # 2 s
        pytest.param(
            WIDE_CACHE, {"context": 2048, "kv": "q8_0/wht4", "threads": 1, "prefill_chunk": 64}, marks=pytest.mark.slow
        ),  # 3 s
        (WIDE_STATE, {"context": 256, "kv": "f16", "threads": 2, "prefill_chunk": 64}),
    ],
    ids=["cache", "narrow cache", "coded cache", "recurrent state"],
)
def test_plan_is_what_is_used(tmp_path: Path, shape: Shape, options: dict[str, Any]) -> None:
    measured = measure(write_model(tmp_path / "model.gguf", shape), **options)
    used = measured["after"]["Anonymous"] - measured["before"]["Anonymous"]
    allowed = tolerance("memory", "plan_share") * measured["total"] + tolerance("memory", "plan_constant_bytes")
    assert measured["total"] > 30e6, "the state should dominate"
    assert abs(used - measured["total"]) < allowed, f"planned {measured['total']}, used {used}"


@linux_only
def test_resident_set(tmp_path: Path) -> None:
    """Weights stay mapped: nothing is held twice."""
    path = write_model(
        tmp_path / "model.gguf", Shape("llama", n_layers=4, hidden=768, ffn=2048, n_heads=12, head_dim=64, n_kv_heads=4)
    )
    size = path.stat().st_size
    assert size > 60e6
    measured = measure(path, context=256, threads=2)
    assert measured["mapped"] <= size
    assert measured["after"]["Rss"] <= size + measured["total"] + tolerance("memory", "process_bytes")
    grown = measured["after"]["Anonymous"] - measured["before"]["Anonymous"]
    assert grown < size / 2 + measured["total"], "the weights were copied"


def test_plan_adds_up(tmp_path: Path) -> None:
    path = write_model(tmp_path / "model.gguf", Shape())
    plan = open_engine(path, context=300, sessions=1).plan
    assert plan["context"] == 300
    assert plan["max_context"] == 4096
    assert plan["total_bytes"] == sum(n_bytes for _, n_bytes, *_ in plan["entries"])
    assert all(n_bytes > 0 and name for name, n_bytes, *_ in plan["entries"])
    assert {name for name, *_, per_session in plan["entries"] if per_session} == {
        "page table",
        "recurrent state",
        "pending rows",
    }
    cache = {name: n_bytes for name, n_bytes, *_ in plan["entries"]}["KV cache"]
    pages = 5 * 64  # 300 tokens in whole pages; one attention layer, K and V, 2 heads of 32
    assert cache == pages * 2 * 2 * 32 * 4


@pytest.fixture(scope="module")
def huge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Promises a context of 16 million tokens, 64 KiB each in f32."""
    shape = Shape("qwen3", n_layers=4, n_heads=8, n_kv_heads=8, head_dim=256, hidden=64, ffn=64, max_context=2**24)
    return write_model(tmp_path_factory.mktemp("huge") / "huge.gguf", shape)


def test_context_that_does_not_fit(huge: Path) -> None:
    """Refused with the numbers; the context that it names does fit, and one page more does not."""
    with pytest.raises(
        OutOfMemoryError, match=r"context = 16777216 needs \d+\.\d MiB in addition to \d+\.\d MiB"
    ) as caught:
        open_engine(huge, context=2**24)
    message = str(caught.value)
    assert re.search(r"\d+\.\d MiB of memory are available", message)
    assert "prefill_chunk" in message and "kv type" in message
    fits = re.search(r"context = (\d+) would fit", message)
    assert fits and 0 < int(fits[1]) < 2**24
    plan = open_engine(huge, context=int(int(fits[1]) * 0.9)).plan  # available memory moves a little
    assert plan["total_bytes"] <= plan["available_bytes"]
    with pytest.raises(OutOfMemoryError):
        open_engine(huge, context=int(int(fits[1]) * 1.1))


def test_default_context_is_what_fits(huge: Path) -> None:
    """Reserving is not touching: nothing near this much is used."""
    plan = open_engine(huge, context=0).plan
    assert 0 < plan["context"] < 2**24
    assert plan["context"] % 64 == 0
    assert plan["total_bytes"] + plan["mapped_bytes"] <= plan["available_bytes"]


def test_default_context_is_the_models(tmp_path: Path) -> None:
    for max_context in (1, 100, 4096):
        path = write_model(tmp_path / "model.gguf", Shape("qwen3", n_layers=1, max_context=max_context))
        assert open_engine(path, context=0).plan["context"] == max_context


def test_context_above_the_models(tmp_path: Path) -> None:
    path = write_model(tmp_path / "model.gguf", Shape("qwen3", n_layers=1, max_context=100))
    with pytest.raises(InvalidRequestError, match="context = 101 exceeds the model's maximum of 100 tokens"):
        open_engine(path, context=101)
    assert open_engine(path, context=100).plan["context"] == 100


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"context": -1}, "context must be positive, got -1"),
        ({"threads": -1}, "threads must be between 1 and 1024, got -1"),
        ({"threads": 1025}, "threads must be between 1 and 1024, got 1025"),
        ({"prefill_chunk": -1}, "prefill_chunk must be between 1 and 8192, got -1"),
        ({"prefill_chunk": 8193}, "prefill_chunk must be between 1 and 8192, got 8193"),
        ({"isa": "mmx"}, 'isa must be .*"mmx"'),
        ({"kv": "q8"}, 'kv must be f32, f16, .* or wht3, or two of them as K/V, got "q8"'),
        ({"kv": "q8_0/"}, 'kv must be .*"q8_0/"'),
        ({"kv": "f16/f16/f16"}, 'kv must be .*"f16/f16/f16"'),
        ({"activations": "int4"}, 'activations must be .*"int4"'),
    ],
)
def test_options_out_of_range(tmp_path: Path, options: dict[str, Any], part: str) -> None:
    path = write_model(tmp_path / "model.gguf", Shape("qwen3", n_layers=1))
    with pytest.raises(InvalidRequestError, match=part):
        open_engine(path, **options)
