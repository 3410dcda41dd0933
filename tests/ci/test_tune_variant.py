"""The variant that `lucebox tune` makes of an installed pack: folder, wheel, and the host's preference for it."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path

import generate_targets
import pytest
import wheel_data
from lucebox import packs
from lucebox.errors import PackError
from lucebox.tune import Choice, variant_manifest, write_folder, write_wheel
from pack_data import on_path
from project import ROOT
from wheels import Wheel

import targets

NAME = "gfx1151"
CHOICE = Choice((), {"prefill_chunk": 1024}, (), {})


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder with a pack as pip leaves it."""
    return unpacked(tmp_path / "site", wheel_data.write(tmp_path, wheel_data.pack_members(NAME)))


def unpacked(site: Path, wheel: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    return site


def made(site: Path, out: Path, choice: Choice = CHOICE) -> Path:
    with on_path(site):
        (pack,) = packs.find().usable
        return write_wheel(pack, variant_manifest(json.loads(pack.manifest_json), "tuned", choice), {}, out)


def test_the_wheel_is_in_order_and_has_the_code_of_the_pack(site: Path, tmp_path: Path) -> None:
    wheel = Wheel(made(site, tmp_path / "out"))
    assert wheel.path.name == "lucebox_gfx1151_tuned-0.1.0-py3-none-any.whl"
    assert list(wheel.damaged_members()) == []
    assert wheel.packs == {"gfx1151_tuned": "lucebox_gfx1151_tuned"}
    assert (wheel.metadata["Name"], wheel.metadata["Version"]) == ("lucebox-gfx1151-tuned", "0.1.0")
    assert wheel.metadata["Requires-Dist"] == "lucebox==0.1.0"
    code = "rms_norm.hsaco"
    assert wheel.members[f"lucebox_gfx1151_tuned/{code}"] == (site / f"lucebox_gfx1151/{code}").read_bytes()
    assert wheel.text("licenses/LICENSE") == "Apache-2.0\n"
    bill = json.loads(wheel.text("sboms/lucebox-gfx1151-tuned.cdx.json"))
    assert bill["metadata"]["component"]["purl"] == "pkg:pypi/lucebox-gfx1151-tuned@0.1.0"
    assert [one["name"] for one in bill["components"]] == [code]
    again = made(site, tmp_path / "again")
    assert again.read_bytes() == wheel.path.read_bytes()


def test_the_host_prefers_the_variant(site: Path, tmp_path: Path) -> None:
    unpacked(site, made(site, tmp_path / "out"))
    with on_path(site):
        best = packs.best_installed(NAME, packs.find())
        assert isinstance(best, packs.Pack)
        assert (best.name, best.target) == ("gfx1151_tuned", NAME)
        best.check()
    base = targets.load(NAME)
    assert best.manifest.tuning == {**vars_of(base.tuning), "prefill_chunk": 1024}


def vars_of(tuning: targets.Tuning) -> dict[str, int]:
    return {name: getattr(tuning, name) for name in targets.TUNING}


def test_a_file_that_is_left_out_is_in_no_generation(tmp_path: Path) -> None:
    members = wheel_data.pack_members("sm_86")
    manifest = json.loads(members["lucebox_sm86/manifest.json"])
    for code in manifest["generations"]:
        code["kernels"].append({**code["kernels"][0], "name": "gemv_kernel", "file": "gemv.cubin"})
        code["files"].append({**code["files"][0], "file": "gemv.nvrtc.cubin"})
    varied = variant_manifest(manifest, "tuned", Choice((), {}, ("gemv",), {}))
    assert varied["variant"] == "tuned"
    for code in varied["generations"]:
        assert [one["name"] for one in code["kernels"]] == ["rms_norm_kernel"]
        assert all(one["file"].startswith("rms_norm.") for one in code["files"])


def test_the_folder_is_a_variant_of_targets(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "targets", tmp_path / "targets")
    shutil.copytree(ROOT / "src" / "gpu", tmp_path / "src" / "gpu")
    choice = Choice((), {"prefill_chunk": 1024}, ("gemv_ring_sm90",), {})
    write_folder(tmp_path / "targets" / "sm_90_tuned", "sm_90", "tuned", choice, "Measured.")
    varied = targets.load("sm_90_tuned", tmp_path)
    assert (varied.tuning.prefill_chunk, varied.without) == (1024, ("gemv_ring_sm90",))
    assert varied.tuning.matvec_threads_per_sm == targets.load("sm_90").tuning.matvec_threads_per_sm
    assert 'name = "lucebox-sm90-tuned"' in generate_targets.pack_project(varied, "0.1.0", {})


def test_a_damaged_pack_makes_no_wheel(site: Path, tmp_path: Path) -> None:
    (site / "lucebox_gfx1151/rms_norm.hsaco").write_bytes(b"other")
    with pytest.raises(PackError, match=r"rms_norm\.hsaco has 5 bytes, the manifest says "):
        made(site, tmp_path / "out")


def test_a_pack_without_metadata_makes_no_wheel(site: Path, tmp_path: Path) -> None:
    (site / wheel_data.info(NAME) / "WHEEL").unlink()
    with pytest.raises(PackError, match="lucebox-gfx1151 has no WHEEL in its metadata; install its wheel again"):
        made(site, tmp_path / "out")
