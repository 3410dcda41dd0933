"""Layers on GPUs of two vendors in one process: two stand-in drivers, and one of them beside the simulator."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pack_data
import pytest
from build_sim import build_sim
from once import once
from reference.gguf_files import Shape, write_model
from test_device import drivers, run  # noqa: F401 a fixture
from tolerances import tolerance
from two_vendors import PAIRS

SHAPE = Shape(
    "qwen35",
    n_layers=2,
    n_mtp=1,
    recurrent=(True, False),
    d_state=64,
    n_v_heads=2,
    n_heads=2,
    n_kv_heads=1,
    head_dim=64,
    vocab=96,
)


@pytest.fixture(scope="module")
def report(drivers: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:  # noqa: F811
    model = write_model(tmp_path_factory.mktemp("two_vendors") / "model.gguf", SHAPE)
    script = Path(__file__).parents[1] / "host/two_vendors.py"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        output = once("two_vendors.json", lambda out: out.write_text(run(drivers, script, build_sim(), model, "mtp")))
    found: dict[str, Any] = json.loads(output.read_text().splitlines()[-1])
    return found


@pytest.mark.parametrize("pair", [",".join(pair) for pair in PAIRS])
def test_layers_on_two_vendors(report: dict[str, Any], pair: str) -> None:
    """Within the tolerance of one device: the devices have other numbers of multiprocessors, so other sums."""
    found = report["pairs"][pair]
    assert all("have different drivers" in link and link.startswith("host: ") for link in found["links"])
    assert max(found["differences"]) < tolerance("logits", "f32_device") and found["is_repeatable"]
    assert found["text"] == found["text_with_drafts"] == report["alone"]
    assert "are GPUs of two vendors" in found["refusal"]


def test_the_pages_are_registered_with_both_drivers(report: dict[str, Any]) -> None:
    assert all(n > 0 for n in report["registered"])


def test_devices_are_found_by_their_drivers(drivers: Path, tmp_path: Path) -> None:  # noqa: F811
    for target in ("sm_90", "gfx1151"):
        pack_data.install(tmp_path, target)
    script = (
        "import ctypes, json, sys\n"
        "ctypes.CDLL('libcuda.so.1').standin_set(2, 13000, b'9.0')\n"
        "ctypes.CDLL('libamdhip64.so.7').standin_set(1, 70151831, b'gfx1151')\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        "from lucebox.packs.devices import resolve_devices, resolve_draft_device\n"
        "both = resolve_devices('cuda:1,hip:0')\n"
        "draft = resolve_draft_device('hip:0', resolve_devices('cuda:1'))\n"
        "print(json.dumps([[one.device, one.choice.pack.name] for one in (*both, draft)]))\n"
    )
    found = json.loads(run(drivers, "-c", script).splitlines()[-1])
    assert found == [["cuda:1", "sm_90"], ["hip:0", "gfx1151"], ["hip:0", "gfx1151"]]
