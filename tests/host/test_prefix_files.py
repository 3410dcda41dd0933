"""Prefixes kept over a restart: files that are damaged, cut, foreign or half written never change an answer."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conversations import Conversation, check, cold, replay, warm
from engines import open_engine, random_ids
from lucebox import _engine
from lucebox.generation.prefix_cache import PrefixCache, fingerprint, state_bytes
from reference.gguf_files import Shape, write_model

SHAPES = {"hybrid": Shape(n_layers=3, recurrent=(True, False, True)), "attention": Shape("qwen3", n_layers=2)}
VOCAB = SHAPES["hybrid"].vocab
BIG = 1 << 30
IDS = random_ids(300, VOCAB)
KILLS = 5  # tests/host/kill_writers.py does more of them


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("prefix_files")
    for name, shape in SHAPES.items():
        write_model(made / f"{name}.gguf", shape)
    return made


@pytest.fixture(params=[("hybrid", "f16"), ("attention", "f16"), ("attention", "q8_0/wht3")], ids="-".join)
def engine(request: pytest.FixtureRequest, models: Path) -> _engine.Engine:
    name, kv = request.param
    return open_engine(models / f"{name}.gguf", activations="int8", kv=kv, context=2048)


@pytest.fixture
def kept(tmp_path: Path, engine: _engine.Engine) -> Path:
    """A folder with the prefixes of IDS."""
    cache = PrefixCache(BIG, tmp_path, "model")
    warm(_engine.Session(engine), cache, IDS, [], 1, 0)
    cache.close()
    return tmp_path


def files_of(folder: Path) -> list[Path]:
    files = (file for kind in ("pages", "state", "windows") for file in folder.glob(f"*.{kind}"))
    return sorted(files, key=lambda file: file.stat().st_mtime_ns)


def reused(engine: _engine.Engine, folder: Path, *, mark: str = "model", budget: int = BIG, disk: int = BIG) -> int:
    """By a run of IDS after a restart, whose bits are those of a cold run."""
    session, cache = _engine.Session(engine), PrefixCache(budget, folder, mark, disk)
    got = warm(session, cache, IDS, [], 3, 0)
    cache.close()
    check(got, cold(session, IDS, [], 3, 0), folder)
    return got.reused


def test_a_restart_loses_nothing(engine: _engine.Engine, kept: Path) -> None:
    cache = PrefixCache(BIG, kept, "model")
    stats = cache.stats()
    assert stats.segments == 4 and stats.memory_bytes == 0  # nothing is read before it is needed
    assert stats.disk_bytes == sum(file.stat().st_size for file in files_of(kept))
    cache.close()
    assert reused(engine, kept) == 256


def test_a_conversation_over_restarts(engine: _engine.Engine, tmp_path: Path) -> None:
    talk = Conversation(VOCAB, np.random.default_rng(5), 40, 1500)
    first = 0
    for restart in range(4):
        cache = PrefixCache(BIG, tmp_path, "model")
        counts = list(replay(engine, cache, talk, 8, n_answer=3, cold_every=2))
        cache.close()
        assert counts[0] >= first, restart
        first = counts[0]
    assert first > 256


@pytest.mark.parametrize("at", ["magic", "header", "ids", "data", "cut", "longer", "empty", "gone"])
def test_damage_is_ignored_with_a_warning(
    engine: _engine.Engine, kept: Path, at: str, caplog: pytest.LogCaptureFixture
) -> None:
    for file in files_of(kept)[1:]:  # a prefix of one segment stays whole
        data = bytearray(file.read_bytes())
        if at == "gone":
            file.unlink()
            continue
        if at in ("cut", "longer", "empty"):
            data = {"cut": data[:-1], "longer": data + b"x", "empty": bytearray()}[at]
        else:
            data[{"magic": 0, "header": 17, "ids": 100, "data": -5}[at]] ^= 4
        file.write_bytes(data)
    with caplog.at_level(logging.WARNING):
        assert reused(engine, kept) <= 64
    assert at == "gone" or "ignored" in caplog.text
    assert reused(engine, kept) == 256  # written anew


@pytest.mark.parametrize("which", range(4))
def test_pages_missing_in_the_middle(engine: _engine.Engine, kept: Path, which: int) -> None:
    pages = [file for file in files_of(kept) if file.suffix == ".pages"]
    sizes = {file: int.from_bytes(file.read_bytes()[16:24], "little") for file in pages}
    sorted(pages, key=sizes.__getitem__)[which].unlink()
    assert reused(engine, kept) <= 64 * which


def test_files_that_go_while_the_cache_runs(engine: _engine.Engine, kept: Path) -> None:
    session, cache = _engine.Session(engine), PrefixCache(BIG, kept, "model")
    for file in files_of(kept):
        file.write_bytes(b"")
    got = warm(session, cache, IDS, [], 2, 0)
    check(got, cold(session, IDS, [], 2, 0), "emptied")
    assert got.reused == 0 and cache.stats().damaged > 0
    cache.close()


def test_files_of_another_model_are_left_alone(
    engine: _engine.Engine, kept: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = files_of(kept)
    with caplog.at_level(logging.WARNING):
        assert reused(engine, kept, mark="another") == 0
    assert f"ignored {len(before)} files" in caplog.text
    assert set(before) < set(files_of(kept))
    assert reused(engine, kept) == 256


def test_other_files_are_not_touched(engine: _engine.Engine, kept: Path) -> None:
    (kept / "notes.pages").write_text("mine")
    (kept / "x.unfinished").write_text("half of something")
    assert reused(engine, kept) == 256
    assert (kept / "notes.pages").read_text() == "mine" and not (kept / "x.unfinished").exists()


def test_the_disk_budget_holds_for_all_models(engine: _engine.Engine, tmp_path: Path) -> None:
    session = _engine.Session(engine)
    budget = 8 * session.page_bytes + 4 * state_bytes(session)
    for i in range(4):
        cache = PrefixCache(BIG, tmp_path, f"model {i}", budget)
        ids = random_ids(300, VOCAB, seed=i)
        warm(session, cache, ids, [], 1, 0)
        cache.close()
        total = sum(file.stat().st_size for file in files_of(tmp_path))
        assert cache.stats().disk_bytes == total <= budget
    cache = PrefixCache(BIG, tmp_path, "model 3", budget)
    assert cache.restore(_engine.Session(engine), ids) == 256  # used last
    cache.close()


def test_what_left_memory_comes_back_from_files(engine: _engine.Engine, kept: Path) -> None:
    session = _engine.Session(engine)
    assert reused(engine, kept, budget=2 * session.page_bytes + state_bytes(session)) == 256


def test_one_process_at_a_time(engine: _engine.Engine, kept: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = PrefixCache(BIG, kept, "model")
    with caplog.at_level(logging.WARNING):
        assert reused(engine, kept) == 0
    assert "not kept across restarts" in caplog.text
    first.close()
    assert reused(engine, kept) == 256


def test_a_disk_that_refuses(engine: _engine.Engine, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "gone"
    cache = PrefixCache(BIG, folder, "model")
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    with caplog.at_level(logging.WARNING):
        warm(_engine.Session(engine), cache, IDS, [], 1, 0)
        cache.close()
    assert "no longer writes files" in caplog.text


def test_fingerprint_tells_options_apart(models: Path) -> None:
    path = models / "hybrid.gguf"
    variants = [
        {},
        {"kv": "f16"},
        {"kv": "f16/q8_0"},
        {"activations": "int8"},
        {"context": 512},
        {"prefill_chunk": 32},
        {"isa": "scalar"},
    ]
    prints = [fingerprint(open_engine(path, **options)) for options in variants]
    prints += [fingerprint(open_engine(path), "{}", code, "GPU") for code in ("nvcc 13.0.88", "nvrtc 12.4.127")]
    prints.append(fingerprint(open_engine(models / "attention.gguf")))
    assert len(set(prints)) == len(prints)
    assert fingerprint(open_engine(path)) == prints[0]


@pytest.mark.slow  # 5 s
def test_killed_while_writing(models: Path, tmp_path: Path) -> None:
    kills = Path(__file__).parent / "kill_writers.py"
    command = [sys.executable, kills, models / "hybrid.gguf", tmp_path, "--kills", str(KILLS)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{KILLS} kills" in done.stdout
