"""A pack on a device: all of its kernels or none, and what the timing helpers measure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpu_packs import load, manifest_of, manifest_without
from kernel_sources import kernels_of_sources
from lucebox import _engine, _kernels
from lucebox.errors import FormatError, LuceboxError, UnsupportedError
from lucebox.selftest import ops

gpu = _engine.gpu


@pytest.fixture
def manifest(pack_folder: Path) -> dict[str, Any]:
    return manifest_of(pack_folder)


def test_every_kernel_of_the_sources_is_in_the_manifest(manifest: dict[str, Any]) -> None:
    sources = kernels_of_sources()
    if manifest["target"] != "sim":  # which is built of all; a chip's target.toml may leave some out
        built = {file["file"].split(".")[0] for file in manifest["generations"][0]["files"]}
        sources = {source: kernels for source, kernels in sources.items() if Path(source).stem in built}
    declared = {kernel for kernels in sources.values() for kernel in kernels}
    for code in manifest["generations"]:
        assert declared and declared <= {kernel["name"] for kernel in code["kernels"]}


def test_a_kernel_that_its_file_lacks_is_named(pack_folder: Path, manifest: dict[str, Any]) -> None:
    for code in manifest["generations"]:
        code["kernels"].append({**code["kernels"][0], "name": "no_such_kernel"})
    with pytest.raises(LuceboxError, match="no_such_kernel"):
        load(pack_folder, manifest)


def test_a_pack_of_other_sources_is_refused(pack_folder: Path, manifest: dict[str, Any]) -> None:
    manifest["abi"] = "0123456789abcdef"
    with pytest.raises(FormatError, match=r"built from different sources.*0123456789abcdef and [0-9a-f]{16}"):
        load(pack_folder, manifest)


def test_a_missing_file_is_named(pack_folder: Path, manifest: dict[str, Any]) -> None:
    (code, *_) = manifest["generations"] = manifest["generations"][:1]
    file = code["kernels"][0]["file"]
    with pytest.raises(FormatError, match=f"has no file {file}"):
        load(pack_folder, manifest, **{file: None})


def test_an_op_without_its_kernel_is_refused(pack_folder: Path) -> None:
    pack = load(pack_folder, manifest_without(pack_folder, "swiglu_kernel"))
    with pytest.raises(UnsupportedError, match=rf"\[swiglu\] \[1, 8\]: the pack of {pack.target} has no swiglu_kernel"):
        ops.swiglu(np.zeros((1, 8), np.float32), np.zeros((1, 8), np.float32), pack=pack)


def test_a_tuning_constant_that_is_missing_is_named(pack_folder: Path, manifest: dict[str, Any]) -> None:
    del manifest["tuning"]["matvec_threads_per_sm"]
    pack = load(pack_folder, manifest)
    with pytest.raises(FormatError, match='no tuning constant "matvec_threads_per_sm"'):
        ops.linear(np.zeros(34, np.uint8), "Q8_0", 1, 32, np.zeros((1, 32), np.float32), pack=pack)


def test_started_kernels_are_told_once(pack: gpu.Pack) -> None:
    ops.take_started(pack)
    ops.swiglu(np.zeros((1, 8), np.float32), np.zeros((1, 8), np.float32), pack=pack)
    assert ops.take_started(pack) == ["swiglu_kernel"]
    assert ops.take_started(pack) == []
    ops.swiglu(np.zeros((1, 8), np.float32), np.zeros((1, 8), np.float32), pack=pack)
    (launch,) = _kernels.ops.take_launches(pack)
    assert launch.startswith("swiglu_kernel<<<[1, 1, 1], [256, 1, 1], 0 B>>>")


@pytest.mark.parametrize("words", [4, 8, 4096, 100000])
def test_read_memory_reads_every_word_once(pack: gpu.Pack, words: int, seed: int) -> None:
    x = np.random.default_rng(seed).integers(0, 1 << 32, words, dtype=np.uint64).astype(np.uint32)
    sums = _kernels.ops.read_memory(pack, x.view(np.uint8))
    assert int(sums.astype(np.uint64).sum()) % (1 << 32) == int(x.astype(np.uint64).sum()) % (1 << 32)


def test_timing(pack: gpu.Pack) -> None:
    x = np.ones((1, 256), np.float32)
    products = [{"w": 1, "type": "Q8_0", "n_out": n, "n_in": 256, "x": x, "activations": "int8"} for n in (16, 8)]
    got = _kernels.ops.time([("linear", products, [])], pack, sets=2, replays=2, tries=1)
    assert got["seconds"] > 0 and "q8_0_int8" in got["launches"][-1]
    assert got["bytes"] == 24 * 256 // 32 * 34 + 256 * 4 + 24 * 4
    assert _kernels.ops.read_bandwidth(pack, 1 << 16, sets=2, replays=2, tries=1) > 0
