"""`lucebox tune` on the simulator, from an installed pack to an installed variant."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import gpu_packs
import pytest
from build_sim import build_sim
from compile_kernels import SIM_LIBRARY, kernel_abi
from engines import Decoder
from lucebox import _engine, packs
from lucebox.cli import main
from lucebox.packs.devices import open_pack, resolve_device
from lucebox.tune import Choice, Kernels, variant_manifest, write_wheel
from pack_data import on_path
from project import ROOT
from reference.gguf_files import Shape, write_model

SHAPE = Shape("llama", n_layers=2, hidden=256, ffn=512, n_heads=4, head_dim=64, tied=True)
# The megakernel is slower than a graph on the simulator, so these limits are wrong there.
WRONG = {"megakernel_max_mib": 64, "megakernel_max_kv_mib": 64}
DEFINES = {"LUCEBOX_GEMV_BLOCKS": 3}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the simulator's pack, up to date with the tree. A build by pip leaves none in its folder."""
    pack, out = build_sim(), tmp_path_factory.mktemp("wheel")
    bill = pack.parents[1] / "sboms" / "lucebox-sim.cdx.json"
    command = [sys.executable, ROOT / "ci/make_wheel.py", "sim", pack, "--sbom", bill, "--out", out]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = out.glob("*.whl")
    return wheel


@pytest.fixture
def site(wheel: Path, tmp_path: Path) -> Iterator[Path]:
    """A folder with the simulator's pack as pip installs it; no other pack can be found."""
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    file = site / "lucebox_sim" / "manifest.json"
    manifest = json.loads(file.read_text())
    manifest["tuning"] |= WRONG
    file.write_text(json.dumps(manifest))
    with on_path(site):
        yield site


def decode_path(model: Path) -> str:
    """The decode path that the engine chooses on the host's preferred pack."""
    pack = open_pack(resolve_device("sim"))
    session = _engine.Session(_engine.Engine.open(str(model), pack=pack, context=64))
    return session.decode_path


@pytest.mark.slow  # 10 s: two engines for every trial, on the simulator
def test_from_a_pack_to_a_better_one(site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = write_model(tmp_path / "small.gguf", SHAPE)
    assert decode_path(model).startswith("megakernel_")
    report = tmp_path / "report.json"
    words = ["tune", str(model), "--device", "sim", "--out", str(tmp_path / "out"), "--report", str(report), "--json"]
    assert main(words) == 0
    captured = capsys.readouterr()
    told = json.loads(captured.out)
    assert "small: megakernel" in captured.err and "left)" in captured.err
    assert told.items() >= json.loads(report.read_text()).items()
    assert str(tmp_path) not in report.read_text()  # the report has no paths of this machine
    assert (told["variant"], told["installed"]) == ("sim_tuned", False)
    constants = {one["name"]: one for one in told["constants"]}
    assert (constants["megakernel_max_mib"]["before"], constants["megakernel_max_mib"]["after"]) == (64, 0)
    assert constants["matvec_threads_per_sm"]["reason"] != "not measured"
    assert [one["test"] for one in told["before"]] == [one["test"] for one in told["after"]] == ["decode"]
    assert "megakernel_max_mib = 0" in (tmp_path / "out/sim_tuned/target.toml").read_text()

    pip = [sys.executable, "-m", "pip", "install", "-qq", "--no-deps", "--target", str(site), told["wheel"]]
    subprocess.run(pip, check=True)
    with on_path(site):
        best = packs.best_installed("sim", packs.find())
        assert isinstance(best, packs.Pack) and best.name == "sim_tuned"
        assert not decode_path(model).startswith("megakernel_")


@pytest.mark.slow  # 15 s: compiles the kernels of GEMV for the simulator
def test_a_variant_with_kernels_that_were_compiled_here(site: Path, tmp_path: Path) -> None:
    """Other constants in the code change no token."""
    model = write_model(tmp_path / "small.gguf", SHAPE)
    choice = resolve_device("sim").choice
    assert choice is not None
    expected = tokens(model)
    compiled = Kernels(ROOT).compile(choice.pack, DEFINES, tmp_path / "code")
    changed = Choice((), {"megakernel_max_mib": 0}, (), DEFINES)
    manifest = variant_manifest(compiled.manifest, "tuned", changed)
    wheel = write_wheel(choice.pack, manifest, compiled.files, tmp_path)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    with on_path(site):
        best = packs.best_installed("sim", packs.find())
        assert isinstance(best, packs.Pack) and best.name == "sim_tuned"
        (code,) = best.manifest.generations
        assert "-DLUCEBOX_GEMV_BLOCKS=3" in code.compiler.flags
        assert {kernel.file for kernel in code.kernels if kernel.name.startswith("gemv_q8_0")} == {SIM_LIBRARY}
        assert sorted(best.manifest.kernel_names) == sorted(choice.pack.manifest.kernel_names)
        assert tokens(model) == expected


def tokens(model: Path) -> list[int]:
    """Some tokens, by GEMV."""
    pack = open_pack(resolve_device("sim"))
    engine = _engine.Engine.open(str(model), pack=pack, context=64, decode_path="graph")
    decoder = Decoder(engine, [3, 1, 4])
    return decoder.decode(4)


def test_a_variant_alone_cannot_be_tuned(site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The variant's kernels and constants no longer match the target's."""
    choice = resolve_device("sim").choice
    assert choice is not None
    manifest = variant_manifest(json.loads(choice.pack.manifest_json), "quiet", Choice((), {}, (), {}))
    wheel = write_wheel(choice.pack, manifest, {}, tmp_path)
    shutil.rmtree(site)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    with on_path(site):
        assert main(["tune", "--device", "sim"]) == 1
    assert "only the variant sim_quiet is installed; a variant is made from the pack of its" in capsys.readouterr().err


def test_the_hash_of_the_shared_headers_is_that_of_the_build() -> None:
    assert kernel_abi() == gpu_packs.manifest_of(build_sim())["abi"]


@pytest.mark.parametrize(
    "words, message",
    [
        (["--device", "cpu"], "[tune] there is no GPU to tune (cpu: as asked for)"),
        (["--device", "sim:8"], "there is no device sim:8"),
        (["--name", "My-Card"], "[tune] --name: expected small letters and digits, got 'My-Card'"),
        (["--budget", "0"], "[tune] --budget: expected seconds above 0, got 0"),
        (["--device", "sim", "nothing.gguf"], "'nothing.gguf' is not a file or folder here"),
    ],
)
def test_what_cannot_be_tuned(site: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str) -> None:
    assert main(["tune", *words]) == 1
    assert message in capsys.readouterr().err
