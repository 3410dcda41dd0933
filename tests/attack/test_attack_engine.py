"""Model files, folders and processes that try to confuse the engine, or a kept state of another model."""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engines import open_engine, random_ids
from lucebox import LLM, FormatError, HubError, InvalidRequestError, LuceboxError, Sampling, _engine
from lucebox.chat.template import ChatTemplate
from lucebox.generation.prefix_cache import PrefixCache
from lucebox.generation.prefix_cache.files import Files
from lucebox.models import catalog
from lucebox.models.checksums import check_once
from lucebox.models.generation_defaults import checked_defaults
from lucebox.models.step_costs import StepCostsFile
from lucebox.regular_files import read_regular
from lucebox.selftest import ops
from lucebox.text.tokenizer_json import read_json
from reference import rms_norm as reference
from reference.gguf_files import Shape, metadata, tensors, write
from tolerances import check

SHAPE = Shape(n_layers=2, recurrent=(True, False))


def model(path: Path, edit: Callable[[dict[str, Any], dict[str, Any]], None] = lambda keys, weights: None) -> Path:
    keys, weights = metadata(SHAPE), tensors(SHAPE)
    edit(keys, weights)
    return write(path, keys, weights)


def moved(weights: dict[str, Any], name: str, at: int) -> None:
    weights[name] = np.array(weights[name])
    weights[name].flat[at] += 0.5


def scaled(keys: dict[str, Any], ending: str) -> None:
    (name,) = (key for key in keys if key.endswith(ending))
    keys[name] *= 2


EDITS: dict[str, Callable[[dict[str, Any], dict[str, Any]], None]] = {
    "freq_base": lambda keys, weights: scaled(keys, "rope.freq_base"),
    "eps": lambda keys, weights: scaled(keys, "layer_norm_rms_epsilon"),
    "a norm's last value": lambda keys, weights: moved(weights, "output_norm.weight", -1),
    "an embedding's last value": lambda keys, weights: moved(weights, "token_embd.weight", -1),
    "a matrix after 64 bytes": lambda keys, weights: moved(weights, "blk.0.ffn_up.weight", 17),
}


def test_fingerprints_cover_metadata_and_every_byte(tmp_path: Path) -> None:
    """A prefix cache or snapshot of another model would give other answers without a word."""
    paths = {name: model(tmp_path / f"{i}.gguf", edit) for i, (name, edit) in enumerate(EDITS.items())}
    engines = {name: open_engine(path) for name, path in paths.items()}
    prints = {name: engine.fingerprint for name, engine in engines.items()}
    one, other = (open_engine(model(tmp_path / f"same{i}.gguf")) for i in range(2))
    assert one.fingerprint == other.fingerprint
    assert len({one.fingerprint, *prints.values()}) == 1 + len(EDITS), prints
    of_metadata = {"freq_base", "eps"}
    assert {name for name, engine in engines.items() if engine.layout != one.layout} == of_metadata
    assert all(_engine.Engine.layout_of(str(path)) == engines[name].layout for name, path in paths.items())


def test_a_snapshot_of_another_model_is_refused(tmp_path: Path) -> None:
    engines = [open_engine(model(tmp_path / "a.gguf")), open_engine(model(tmp_path / "b.gguf", EDITS["freq_base"]))]
    sessions = [_engine.Session(engine) for engine in engines]
    sessions[0].sync(np.arange(1, 9, dtype=np.int32))
    with pytest.raises(Exception, match="another model"):
        sessions[1].load(bytes(sessions[0].save()), "snapshot")


def test_values_whose_squares_overflow(isa: str) -> None:
    rng = np.random.default_rng(0)
    w = np.ones(257, np.float32)
    for size in (1e18, 2e19, 1e30, 1e37):
        x = (rng.normal(size=(2, 1, 257)) * size).astype(np.float32)
        check("norm", ops.rms_norm(x, w, 1e-6, isa=isa), reference.rms_norm(x, w, 1e-6))
    x[1, 0, 3] = np.inf
    assert np.isnan(ops.rms_norm(x, w, 1e-6, isa=isa)[1]).any()


def test_logits_that_are_not_finite_are_an_error(tmp_path: Path) -> None:
    def overflow(keys: dict[str, Any], weights: dict[str, Any]) -> None:
        weights["output_norm.weight"] = np.full_like(weights["output_norm.weight"], 3e38)

    session = _engine.Session(open_engine(model(tmp_path / "overflow.gguf", overflow)))
    ids = np.arange(1, 9, dtype=np.int32)
    for call in (lambda: session.score(ids), lambda: session.append(ids)):
        with pytest.raises(FormatError, match="are not finite"):
            call()


# --- files that are no files


def special_files(folder: Path) -> list[Path]:
    os.mkfifo(folder / "fifo")
    (folder / "zero").symlink_to("/dev/zero")
    (folder / "folder").mkdir()
    return [folder / name for name in ("fifo", "zero", "folder")]


def test_pipes_and_devices_are_refused(tmp_path: Path) -> None:
    readers: list[Callable[[Path], object]] = [lambda path: read_regular(path, 100), read_json, ChatTemplate.from_file]
    for path in special_files(tmp_path):
        for read in readers:
            with pytest.raises(FormatError, match="expected a regular file"):
                read(path)


def test_pipes_and_devices_in_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cached file that is none is measured, or verified, again. A session's file is refused."""
    file = tmp_path / "model.bin"
    file.write_bytes(b"weights")
    digest = hashlib.sha256(b"weights").hexdigest()
    monkeypatch.setenv("LUCEBOX_CACHE", str(tmp_path / "cache"))
    with LLM("tiny-hybrid", context=64, threads=1, draft="none") as llm:
        costs = StepCostsFile(llm.model.engine, "none", "cpu", "cpu")
        for kind in special_files(tmp_path):
            records = tmp_path / f"records-{kind.name}"
            records.mkdir()
            (records / hashlib.sha256(os.fsencode(file.resolve())).hexdigest()).symlink_to(kind)
            check_once(file, digest, records)
            costs.path.parent.mkdir(parents=True, exist_ok=True)
            costs.path.unlink(missing_ok=True)
            costs.path.symlink_to(kind)
            assert not costs.load(llm.model.engine)
            with pytest.raises(FormatError, match="expected a regular file"):
                llm.load_session(kind)


@pytest.mark.first_case
@pytest.mark.parametrize("name", ["tokenizer.json", "config.json", "generation_config.json", "chat_template.jinja"])
def test_a_pipe_in_a_model_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"\2\0\0\0\0\0\0\0{}")
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name)
    code = f"import lucebox; lucebox.LLM({str(tmp_path)!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "Error" in done.stderr


def test_cache_files_are_private_and_regular(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    files = Files(folder, "model", [""])
    path, _ = files.write("", "pages", 0, np.arange(4, dtype=np.int32), (4,), np.zeros(9, np.uint8))
    modes = [stat.S_IMODE(one.stat().st_mode) for one in (folder, path, folder / "lock")]
    assert modes == [0o700, 0o600, 0o600]
    os.mkfifo(folder / f"{'0' * 40}.pages")
    (folder / f"{'1' * 40}.state").symlink_to("/dev/zero")
    assert [one.path for one in files.read_all()] == [path]


def test_a_damaged_part_with_a_right_checksum_is_dropped(tmp_path: Path) -> None:
    """Its prompt fails once, and not for ever."""
    engine = open_engine(model(tmp_path / "model.gguf"), context=512)
    ids = random_ids(200, SHAPE.vocab)
    cache = PrefixCache(1 << 24, tmp_path / "cache", "model")
    list(cache.prefill(_engine.Session(engine), ids))
    cache.close()
    files = Files(tmp_path / "cache", "model", [""])
    for part in [*files.read_all()]:
        nan = np.full(part.n_bytes // 4, np.nan, np.float32).view(np.uint8)
        files.write(part.owner, part.kind, part.start, part.ids, part.ends, nan)
    files.close()

    cache, session = PrefixCache(1 << 24, tmp_path / "cache", "model"), _engine.Session(engine)
    done = cache.prefill(session, ids)
    assert next(done) > 0
    list(done)
    with pytest.raises(FormatError, match="not finite"):
        session.sample(_engine.Sampler(SHAPE.vocab))
    session.reset()
    cache.forget(session, ids)
    done = cache.prefill(session, ids)
    assert next(done) == 0
    list(done)
    session.sample(_engine.Sampler(SHAPE.vocab))
    cache.close()


def test_fetched_files_are_compared_with_their_hash_once(tmp_path: Path) -> None:
    """A hub's client names a large file by its hash; a swapped or damaged one is refused, also with the same size."""
    data = b"weights" * 1000
    sha256 = hashlib.sha256(data).hexdigest()
    file, records, reads = tmp_path / sha256, tmp_path / "records", []
    (tmp_path / "model.gguf").symlink_to(file)
    file.write_bytes(data)
    for _ in range(2):
        check_once(tmp_path / "model.gguf", sha256, records, lambda done, total: reads.append(done))
    assert reads == [len(data)]
    file.write_bytes(data[:-1] + b"!")
    with pytest.raises(HubError, match=f"expected {sha256}"):
        check_once(tmp_path / "model.gguf", sha256, records)


def test_a_swapped_file_in_the_catalogs_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LUCEBOX_CACHE", str(tmp_path))
    entry = next(one for one in catalog.entries() if one.name == "smollm2-135m")
    (tmp_path / "models").mkdir()
    with (tmp_path / "models" / entry.model.file).open("wb") as file:
        file.truncate(entry.model.bytes)  # the right size
    assert (tmp_path / "models" / entry.model.file) not in catalog.cached().values()


@pytest.mark.parametrize(
    "name", ["x" * 5000, "a\0b", "\udcff.gguf", "", "~nobody/x", b"b\xff.gguf", "org/\u2028", 5, None]
)
def test_names_that_are_no_model(name: Any) -> None:
    with pytest.raises(LuceboxError):
        LLM(name, offline=True)


# --- values that no sampler takes


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"top_k": 2.0}, {"top_k": 2}),
        ({"top_k": 1e18}, {}),
        ({"top_k": 2.5, "top_p": 0.9}, {"top_p": 0.9}),
        ({"temperature": float("nan")}, {}),
        ({"temperature": True}, {}),
        ({"temperature": "0.7"}, {}),
        ({"top_p": 0}, {}),
        ({"repetition_penalty": -1}, {}),
        ({"do_sample": True, "temperature": 0.7}, {"do_sample": True, "temperature": 0.7}),
    ],
    ids=str,
)
def test_recommendations_of_a_checkpoint(given: dict[str, Any], kept: dict[str, Any]) -> None:
    notes: list[str] = []
    assert checked_defaults(given, "generation_config.json", notes) == kept
    assert len(notes) == len(given) - len(kept)


@pytest.mark.parametrize(
    "fields",
    [{"max_tokens": 1.5}, {"max_tokens": True}, {"top_k": 2**40}, {"stop_ids": ("x",)}, {"penalty_window": 1e3}],
    ids=str,
)
def test_sampling_of_wrong_types(fields: dict[str, Any]) -> None:
    with LLM("tiny-hybrid", context=64, threads=1) as llm, pytest.raises(InvalidRequestError, match=next(iter(fields))):
        llm.generate("a", Sampling(**fields))


# --- threads and processes


def test_closed_while_others_generate() -> None:
    llm = LLM("tiny-hybrid", context=256, threads=1)
    errors: list[Exception] = []

    def generate() -> None:
        try:
            while True:
                llm.generate("hello", Sampling(max_tokens=50))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=generate) for _ in range(4)]
    for thread in threads:
        thread.start()
    llm.generate("hello", Sampling(max_tokens=5))
    llm.close()
    for thread in threads:
        thread.join(60)
    assert [str(error) for error in errors] == ["this LLM was closed"] * 4


def test_a_forked_child_gets_an_error_and_ends() -> None:
    code = """
import os, sys, lucebox
llm = lucebox.LLM("tiny-hybrid", context=64, threads=2)
child = os.fork()
if child == 0:
    try:
        llm.generate("a", lucebox.Sampling(max_tokens=2))
    except lucebox.InvalidRequestError as error:
        print(error, flush=True)
    llm.close()
    sys.exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), len(llm.generate("a", lucebox.Sampling(max_tokens=2)).ids))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    first, second = done.stdout.splitlines()
    assert "is a fork of it" in first
    assert second == "7 2"
