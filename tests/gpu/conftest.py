"""The packs that the tests run on: the simulator's, built from this tree, and the packs that --pack names."""

from __future__ import annotations

from pathlib import Path

import gpu_packs
import pytest
from build_sim import build_sim
from lucebox import _engine
from lucebox.generation import loading
from lucebox.measure import bench
from lucebox.packs import Selection


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--pack",
        action="append",
        default=[],
        type=Path,
        help="folder of a pack (with manifest.json) to test on device 0 of its vendor, besides the simulator",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "pack_folder" in metafunc.fixturenames:
        folders = [None, *metafunc.config.getoption("--pack")]
        ids = ["sim" if folder is None else folder.name for folder in folders]
        metafunc.parametrize("pack_folder", folders, ids=ids, indirect=True, scope="session")


@pytest.fixture(scope="session")
def pack_folder(request: pytest.FixtureRequest) -> Path:
    return build_sim() if request.param is None else request.param


@pytest.fixture(scope="session")
def pack(pack_folder: Path) -> _engine.gpu.Pack:
    """A pack, loaded on a device of its target."""
    return gpu_packs.load(pack_folder, gpu_packs.manifest_of(pack_folder))


@pytest.fixture
def on_pack(pack: _engine.gpu.Pack, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of the pack's device, by which LLM finds the pack although it is not installed."""
    resolve_devices = loading.resolve_devices

    def resolve(device: str, name: str | None = None, *, require_gpu: bool = False) -> tuple[Selection, ...]:
        if device == pack.name:
            return (Selection(device, pack.device, None, ()),)
        return resolve_devices(device, name, require_gpu=require_gpu)

    monkeypatch.setattr(loading, "resolve_devices", resolve)
    monkeypatch.setattr(loading, "open_pack", lambda selection: None if selection.info is None else pack)
    monkeypatch.setattr(bench, "BANDWIDTH_BYTES", 1 << 20)  # the simulator reads slowly
    return pack.name
